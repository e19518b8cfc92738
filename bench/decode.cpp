// Decoding on either backend: new tokens a second of B rows that grow together, drawn greedily or
// at a temperature, after a warm-up; and the time for the prompts. Weights are random unless a
// checkpoint is given: speed does not depend on them.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/core/error.h"
#include "llmc/infer/sampler.h"
#include "llmc/io/model_loader.h"
#include "llmc/nn/transformer.h"

namespace llmc::bench {
namespace {

constexpr const char* kUsage =
    "usage: decode [options]\n"
    "  --model NAME         preset, random weights (gpt2-124M)\n"
    "  --checkpoint PATH    a model in its place\n"
    "  --batch B            rows decoded together (1)\n"
    "  --tokens N           new tokens of each row that are timed (256)\n"
    "  --prompt N           tokens of each prompt (16)\n"
    "  --precision P        fp32, tf32 or bf16 (bf16)\n"
    "  --temperature X      0: the likeliest token (0)\n"
    "  --top-k K            (0: all)\n"
    "  --top-p P            (1: all)\n"
    "  --attention KIND     auto, cudnn or own (auto)\n"
    "  --tuning-cache FILE  timed choices of matrix products; empty: none\n"
    "  --no-tuning          take the vendor library's choices\n"
    "  --threads N          CPU: 0: all\n"
    "  --json               end with a line of JSON\n";

struct Options {
  std::string model = "gpt2-124M";
  std::string checkpoint;
  std::int64_t batch = 1;
  std::int64_t tokens = 256;
  std::int64_t prompt = 16;
  std::string precision = "bf16";
  SampleOptions sample{.temperature = 0.0f, .seed = 1};
  DeviceOptions device;
  bool json = false;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--no-tuning") {
      o.device.tune_matmul = false;
      continue;
    }
    if (name == "--json") {
      o.json = true;
      continue;
    }
    if (i + 1 == argc) {
      fail(ErrorKind::kConfig, "bench", "expected a value after ", name, "\n", kUsage);
    }
    const char* value = argv[++i];
    if (name == "--model") {
      o.model = value;
    } else if (name == "--checkpoint") {
      o.checkpoint = value;
    } else if (name == "--batch") {
      o.batch = std::atoll(value);
    } else if (name == "--tokens") {
      o.tokens = std::atoll(value);
    } else if (name == "--prompt") {
      o.prompt = std::atoll(value);
    } else if (name == "--precision") {
      o.precision = value;
    } else if (name == "--temperature") {
      o.sample.temperature = std::strtof(value, nullptr);
    } else if (name == "--top-k") {
      o.sample.top_k = std::atoll(value);
    } else if (name == "--top-p") {
      o.sample.top_p = std::strtof(value, nullptr);
    } else if (name == "--attention") {
      o.device.attention = value;
    } else if (name == "--tuning-cache") {
      o.device.tuning_cache = value;
    } else if (name == "--threads") {
      o.device.threads = std::atoi(value);
    } else {
      fail(ErrorKind::kConfig, "bench", "unknown option ", name, "\n", kUsage);
    }
  }
  return o;
}

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Prompts of equal length but different tokens.
std::vector<Sampler::Tokens> draw_prompts(const Options& o, std::int64_t vocab_size) {
  std::mt19937 draws(1);
  std::uniform_int_distribution<std::int32_t> id(0, static_cast<std::int32_t>(vocab_size - 1));
  std::vector<Sampler::Tokens> prompts(static_cast<std::size_t>(o.batch));
  for (auto& prompt : prompts) {
    prompt.resize(static_cast<std::size_t>(o.prompt));
    for (auto& token : prompt) token = id(draws);
  }
  return prompts;
}

/// Seconds until every row has its first token, and from there to the last one.
struct Times {
  double prompt = 0, decode = 0;
};

Times generate(Sampler& sampler, const std::vector<Sampler::Tokens>& prompts, std::int64_t tokens) {
  const auto began = Clock::now();
  std::optional<Clock::time_point> first;
  sampler.generate_batch(prompts, tokens + 1, [&](std::size_t, std::int32_t) {
    if (!first) first = Clock::now();
    return true;
  });
  return {std::chrono::duration<double>(*first - began).count(), seconds_since(*first)};
}

void run(const Options& o) {
  const Device device = Device::open(o.device);
  std::optional<ModelLoader> loader;
  if (!o.checkpoint.empty()) loader.emplace(o.checkpoint);
  const ModelConfig config = loader ? loader->config() : ModelConfig::preset(o.model);
  TransformerOptions options;
  options.dtype = o.precision == "bf16" ? DType::kBF16 : DType::kF32;
  options.tf32 = o.precision == "tf32";
  options.training = false;
  Transformer model(device, config, options);
  model.allocate();
  if (loader) {
    loader->read_weights(model.stream(), model.parameters());
  } else {
    model.init(42);
  }
  std::printf("%s on %s, B=%d, prompt %d, %s\n", loader ? o.checkpoint.c_str() : o.model.c_str(),
              device.name().c_str(), static_cast<int>(o.batch), static_cast<int>(o.prompt),
              o.precision.c_str());
  Sampler sampler(model, o.sample, o.batch);
  const auto prompts = draw_prompts(o, config.vocab_size);
  const Times first = generate(sampler, prompts, 8);
  const Times times = generate(sampler, prompts, o.tokens);
  const auto B = static_cast<double>(o.batch), N = static_cast<double>(o.tokens);
  const double rate = B * N / times.decode;
  std::printf("prompts: %.2f ms the first time, %.2f ms then (%.0f tok/s)\n", 1e3 * first.prompt,
              1e3 * times.prompt, B * static_cast<double>(o.prompt) / times.prompt);
  std::printf("decode: %.3f ms a step of %d tokens, %.1f tok/s\n", 1e3 * times.decode / N,
              static_cast<int>(o.batch), rate);
  if (o.json) {
    std::printf(
        "{\"batch\": %d, \"tokens\": %d, \"ms_per_step\": %.4f, \"tokens_per_s\": %.1f, "
        "\"first_prompt_ms\": %.3f, \"prompt_ms\": %.3f}\n",
        static_cast<int>(o.batch), static_cast<int>(o.tokens), 1e3 * times.decode / N, rate,
        1e3 * first.prompt, 1e3 * times.prompt);
  }
}

}  // namespace
}  // namespace llmc::bench

int main(int argc, char** argv) {
  try {
    llmc::bench::run(llmc::bench::parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "decode: %s\n", error.what());
    return 1;
  }
}
