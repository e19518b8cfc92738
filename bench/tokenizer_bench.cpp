// Times one thread that encodes a file: tokenizer_bench TOKENIZER FILE. Prints a line of JSON for
// tokenizer_side_by_side.py.
#include <chrono>
#include <cstdio>
#include <exception>

#include "llmc/core/file.h"
#include "llmc/data/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: tokenizer_bench TOKENIZER FILE\n", stderr);
    return 2;
  }
  try {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    const auto tokenizer = llmc::load_tokenizer(argv[1]);
    const auto loaded = Clock::now();
    const std::string text = llmc::read_text(argv[2]);
    const auto begin = Clock::now();
    const auto ids = tokenizer->encode(text);
    const auto end = Clock::now();
    const auto seconds = [](Clock::duration time) {
      return std::chrono::duration<double>(time).count();
    };
    std::printf("{\"load_seconds\": %.4f, \"seconds\": %.6f, \"bytes\": %zu, \"tokens\": %zu}\n",
                seconds(loaded - start), seconds(end - begin), text.size(), ids.size());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
