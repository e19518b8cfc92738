// Decoding on either backend: new tokens a second of B rows that grow together, drawn greedily or
// at a temperature, after a warm-up; and the time for the prompts. Weights are random unless a
// checkpoint is given: speed does not depend on them.

#include <cstdint>
#include <cstdio>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "bench/model_options.h"
#include "bench/timing.h"
#include "cli/app.h"
#include "cli/options.h"
#include "llmc/comm/process_group.h"
#include "llmc/infer/sampler.h"
#include "llmc/io/model_loader.h"
#include "llmc/nn/transformer.h"

namespace llmc::bench {
namespace {

struct Options {
  ModelOptions model;
  std::string checkpoint;
  std::int64_t batch = 1;
  std::int64_t tokens = 256;
  std::int64_t prompt = 16;
  double temperature = 0;
  std::int64_t top_k = 0;
  double top_p = 1;

  SampleOptions sample() const {
    return {.temperature = static_cast<float>(temperature),
            .top_k = top_k,
            .top_p = static_cast<float>(top_p),
            .seed = 1};
  }
};

void add_options(cli::OptionParser& parser, Options& o) {
  const ConfigRange count{1, 1e6};
  o.model.add_to(parser, {});
  parser.add("checkpoint", o.checkpoint, "A model in place of --model with random weights.");
  parser.add("batch", o.batch, "Rows decoded together.", count);
  parser.add("tokens", o.tokens, "New tokens of each row that are timed.", count);
  parser.add("prompt", o.prompt, "Tokens of each prompt.", count);
  parser.add("temperature", o.temperature, "0: the likeliest token.", {0, 1e4});
  parser.add("top-k", o.top_k, "Draw from the so many likeliest tokens. 0: all.", {0, 1e7});
  parser.add("top-p", o.top_p, "Draw from the likeliest tokens of this probability. 1: all.",
             {0, 1, true});
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
  const double began = now();
  std::optional<double> first;
  sampler.generate_batch(prompts, tokens + 1, [&](std::size_t, std::int32_t) {
    if (!first) first = now();
    return true;
  });
  return {*first - began, now() - *first};
}

int run(const Options& o) {
  const Device device = Device::open(o.model.device_options());
  std::optional<ModelLoader> loader;
  if (!o.checkpoint.empty()) loader.emplace(o.checkpoint);
  TrainConfig wanted = o.model.config;
  const ModelConfig config = loader ? loader->config() : resolve(wanted, nullptr, nullptr);
  TransformerOptions options;
  options.dtype = o.model.dtype();
  options.tf32 = o.model.tf32();
  options.training = false;
  Transformer model(device, config, options);
  model.allocate();
  if (loader) {
    loader->read_weights(model.stream(), model.parameters());
  } else {
    model.init(42);
  }
  std::printf("%.1f M parameters, L=%d C=%d, on %s, B=%d, prompt %d, %s\n",
              1e-6 * static_cast<double>(config.num_parameters()), static_cast<int>(config.n_layer),
              static_cast<int>(config.n_embd), device.name().c_str(), static_cast<int>(o.batch),
              static_cast<int>(o.prompt), wanted.precision.c_str());
  Sampler sampler(model, o.sample(), o.batch);
  const auto prompts = draw_prompts(o, config.vocab_size);
  const Times first = generate(sampler, prompts, 8);
  const Times times = generate(sampler, prompts, o.tokens);
  const auto B = static_cast<double>(o.batch), N = static_cast<double>(o.tokens);
  const double rate = B * N / times.decode;
  std::printf("prompts: %.2f ms the first time, %.2f ms then (%.0f tok/s)\n", 1e3 * first.prompt,
              1e3 * times.prompt, B * static_cast<double>(o.prompt) / times.prompt);
  std::printf("decode: %.3f ms a step of %d tokens, %.1f tok/s\n", 1e3 * times.decode / N,
              static_cast<int>(o.batch), rate);
  if (o.model.json) {
    std::printf(
        "{\"batch\": %d, \"tokens\": %d, \"ms_per_step\": %.4f, \"tokens_per_s\": %.1f, "
        "\"first_prompt_ms\": %.3f, \"prompt_ms\": %.3f}\n",
        static_cast<int>(o.batch), static_cast<int>(o.tokens), 1e3 * times.decode / N, rate,
        1e3 * first.prompt, 1e3 * times.prompt);
  }
  return cli::kDone;
}

cli::Work prepare(int argc, char** argv) {
  Options options;
  cli::OptionParser parser("decode", "Times how fast rows of tokens grow together.");
  add_options(parser, options);
  if (!parser.parse(argc, argv)) return {};
  expect_one_process("decode");
  return [options] { return run(options); };
}

}  // namespace
}  // namespace llmc::bench

int main(int argc, char** argv) {
  return llmc::cli::run_app("decode", argv, [&] { return llmc::bench::prepare(argc, argv); });
}
