// Trains a small GPT on tales from the built-in grammar and lets it tell one.

#include <cstdio>

#include "llmc/data/corpus.h"
#include "llmc/data/tokenizer.h"
#include "llmc/infer/sampler.h"
#include "llmc/nn/transformer.h"
#include "llmc/optim/adamw.h"
#include "llmc/optim/schedule.h"

int main() {
  const auto B = 4, steps = 700;
  const auto T = llmc::longest_tale() + 1;
  const auto tokenizer = llmc::make_byte_tokenizer();
  const auto device = llmc::Device::open();
  const auto config = llmc::ModelConfig::gpt2(/*n_layer=*/2, /*n_head=*/4, /*n_embd=*/64,
                                              /*block_size=*/T, tokenizer->vocab_size());
  llmc::Transformer model(device, config, {.micro_batch = B});
  model.allocate();
  model.init(/*seed=*/42);
  llmc::AdamW optimizer(model.parameters(), {.beta2 = 0.99f}, {.grad_clip = 1.0f});
  optimizer.allocate(device);
  optimizer.start(model.stream());

  const llmc::Schedule schedule({.lr = 1e-2, .warmup_steps = 50, .max_steps = steps});
  llmc::TaleSource tales(B, T, /*seed=*/1);
  llmc::Batch batch;
  for (int step = 0; step < steps; ++step) {
    tales.next(batch);
    model.begin_step({schedule.lr(step), /*seed=*/42, step, /*nominal_tokens=*/double(B * T)});
    model.forward(batch.inputs, batch.targets);
    model.backward();
    optimizer.step(model.stream(), model.step_block());
    if (step % 100 == 0) std::printf("%4d  loss %.3f\n", step, model.read_step_block().loss);
  }

  const float loss = model.read_step_block().loss;
  llmc::Sampler sampler(model, {.temperature = 0.7f, .end_of_text = tokenizer->end_of_text()});
  const auto tale = sampler.generate(/*prompt=*/{}, /*max_new_tokens=*/T);
  std::printf("%4d  loss %.3f\n\n%s\n", steps, loss, tokenizer->decode(tale).c_str());
  return loss < 1.0f ? 0 : 1;
}
