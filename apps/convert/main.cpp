// Writes a model in the format of another program.

#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include "cli/app.h"
#include "cli/options.h"
#include "llmc/comm/process_group.h"
#include "llmc/core/error.h"
#include "llmc/core/log.h"
#include "llmc/io/hf_model.h"
#include "llmc/io/llmc_format.h"
#include "llmc/train/run_folder.h"

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMegabyte = 1'000'000;

struct Options {
  std::string checkpoint;
  std::string out;
  std::string format;
  std::string precision;
  std::string tokenizer;
  std::int64_t max_file_mb = 5000;
};

std::string format_of(const Options& options) {
  if (options.format == "hf" || options.format == "llmc" || options.format == "native") {
    return options.format;
  }
  if (options.format.empty()) return fs::path(options.out).extension() == ".bin" ? "llmc" : "hf";
  llmc::fail(llmc::ErrorKind::kConfig, "convert", "format: expected hf, llmc or native, got ",
             options.format);
}

llmc::DType dtype_of(const Options& options, const llmc::ModelLoader& model) {
  if (options.precision.empty()) return model.dtype();
  if (options.precision == "fp32") return llmc::DType::kF32;
  if (options.precision == "bf16") return llmc::DType::kBF16;
  llmc::fail(llmc::ErrorKind::kConfig, "convert", "precision: expected fp32 or bf16, got ",
             options.precision);
}

// A model is worth writing without the tokenizer that it came with; one that was asked for is not
// left out.
std::shared_ptr<llmc::Tokenizer> tokenizer_of(const Options& options,
                                              const llmc::ModelLoader& model) {
  try {
    return llmc::load_model_tokenizer(model, options.tokenizer);
  } catch (const llmc::Error& error) {
    if (!options.tokenizer.empty()) throw;
    llmc::log(llmc::LogLevel::kWarning,
              llmc::concat("the model is written without its tokenizer: ", error.what()));
    return nullptr;
  }
}

void check_out(const fs::path& out) {
  if (out.empty()) {
    llmc::fail(llmc::ErrorKind::kConfig, "convert", "out: expected a name, got an empty one");
  }
  std::error_code ignored;
  const auto type = fs::symlink_status(out, ignored).type();
  const bool is_empty_folder = type == fs::file_type::directory && fs::is_empty(out, ignored);
  // Where nothing can be seen, writing will say why.
  const bool is_hidden = type == fs::file_type::none;
  if (type == fs::file_type::not_found || is_empty_folder || is_hidden) return;
  llmc::fail(llmc::ErrorKind::kInput, "convert", "out: expected a new name, got ", out.string(),
             ", which exists; remove it or give another one");
}

void check_for_format(const Options& options, const std::string& format) {
  if (format == "llmc" && !options.tokenizer.empty()) {
    llmc::fail(llmc::ErrorKind::kConfig, "convert", "tokenizer: expected none with the format ",
               "llmc, whose files hold no tokenizer, got ", options.tokenizer);
  }
  if (format != "hf" && options.max_file_mb != Options().max_file_mb) {
    llmc::fail(llmc::ErrorKind::kConfig, "convert", "max_file_mb: expected it with the format hf ",
               "only, got ", format);
  }
}

llmc::cli::Work prepare(int argc, char** argv) {
  Options options;
  llmc::cli::OptionParser parser(
      "convert", "Writes a model in the format of another program, or of this one.");
  parser.add("checkpoint", options.checkpoint,
             "Run folder (its newest checkpoint), checkpoint, Hugging Face folder or llm.c model "
             "file.");
  parser.add("out", options.out, "What to write: a new folder, or a file for llmc.");
  parser.add("format", options.format,
             "hf: Hugging Face folder. llmc: llm.c model file. native: run folder with weights to "
             "start from. Default: llmc where --out ends in .bin, else hf.");
  parser.add("precision", options.precision, "fp32 or bf16. Default: as stored.");
  parser.add("tokenizer", options.tokenizer,
             "For models without one: byte, or a tokenizer's folder or file.");
  parser.add("max-file-mb", options.max_file_mb,
             "With hf: tensors go into several files where one would be larger.", {1, 1e9});
  parser.require("checkpoint");
  parser.require("out");
  if (!parser.parse(argc, argv)) return {};
  llmc::expect_one_process("convert");

  const std::string format = format_of(options);
  check_for_format(options, format);
  check_out(options.out);
  const auto model = std::make_shared<llmc::ModelLoader>(options.checkpoint);
  const llmc::DType dtype = dtype_of(options, *model);
  const auto tokenizer = format == "llmc" ? nullptr : tokenizer_of(options, *model);
  return [=] {
    if (format == "llmc") {
      llmc::write_llmc_model(options.out, model->weights(), dtype);
    } else if (format == "hf") {
      llmc::HfWriteOptions hf;
      hf.dtype = dtype;
      hf.max_file_bytes = static_cast<std::uint64_t>(options.max_file_mb) * kMegabyte;
      hf.tokenizer = tokenizer.get();
      llmc::write_hf_model(options.out, model->weights(), hf);
    } else {
      const llmc::CheckpointInfo* info = model->checkpoint();
      llmc::write_model_checkpoint(options.out, model->weights(), dtype,
                                   info ? *info : llmc::CheckpointInfo(), tokenizer.get());
    }
    std::cout << options.out << ": " << llmc::name_of(dtype) << " weights of "
              << model->source().string()
              << (format == "llmc" ? ""
                  : tokenizer      ? ", with tokenizer"
                                   : ", without tokenizer")
              << '\n';
    return llmc::cli::kDone;
  };
}

}  // namespace

int main(int argc, char** argv) {
  return llmc::cli::run_app("convert", argv, [&] { return prepare(argc, argv); });
}
