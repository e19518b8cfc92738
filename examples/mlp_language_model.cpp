// A language model without a Transformer: the feed-forward network of Bengio et al. (2003), put
// together from single layers and one new layer (mlp_model.h). Here its gradients are checked
// against differences of the loss, and it is trained.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "llmc/data/corpus.h"
#include "llmc/data/tokenizer.h"
#include "llmc/optim/adamw.h"
#include "mlp_model.h"

namespace {

/// The next kRows places of a text: its last kContext bytes and the byte that follows.
llmc::Batch next_batch(const std::vector<std::int32_t>& text, std::size_t& place) {
  llmc::Batch batch;
  for (std::int64_t row = 0; row < kRows; ++row, ++place) {
    if (place + kContext >= text.size()) place = 0;
    const auto begin = text.begin() + static_cast<std::ptrdiff_t>(place);
    batch.inputs.insert(batch.inputs.end(), begin, begin + kContext);
    batch.targets.push_back(begin[kContext]);
  }
  return batch;
}

/// Compares the gradient of every parameter with the loss's central difference along it. Returns
/// the largest relative difference.
double worst_gradient_error(MlpModel& model, const llmc::Batch& batch) {
  const llmc::StepInputs inputs{.lr = 0, .seed = 0, .step = 0, .nominal_tokens = kRows};
  double worst = 0;
  for (const llmc::Parameter& parameter : model.parameters().table()) {
    model.run(batch, inputs);
    const llmc::Tensor value = model.parameters().value(parameter.name);
    const llmc::Tensor gradient = model.parameters().gradient(parameter.name);
    const std::vector<float> start = to_host(model.stream(), value);
    const std::vector<float> g = to_host(model.stream(), gradient);
    double norm = 0;
    for (const float x : g) norm += static_cast<double>(x) * x;
    norm = std::sqrt(norm);

    const auto loss_at = [&](double distance) {
      std::vector<float> moved(g.size());
      for (std::size_t i = 0; i < g.size(); ++i) {
        moved[i] = static_cast<float>(start[i] + distance * g[i] / norm);
      }
      copy_from_host(model.stream(), value, moved.data());
      return model.run(batch, inputs);
    };
    const double h = 1e-2;
    const double slope = (loss_at(h) - loss_at(-h)) / (2 * h);
    loss_at(0);
    const double error = std::abs(slope - norm) / norm;
    std::printf("  %-14s gradient %.6f  difference %.6f\n", parameter.name.c_str(), norm, slope);
    worst = std::max(worst, error);
  }
  return worst;
}

}  // namespace

int main() {
  const auto tokenizer = llmc::make_byte_tokenizer();
  std::vector<std::int32_t> text(kContext, tokenizer->end_of_text());
  for (int i = 0; i < 300; ++i) tokenizer->encode(text, llmc::make_tale(/*seed=*/1, i).text);

  const llmc::Device device = llmc::Device::open();
  MlpModel model(device);
  std::size_t place = 0;
  const double error = worst_gradient_error(model, next_batch(text, place));
  std::printf("largest relative error of a gradient: %.1e\n", error);

  llmc::AdamW optimizer(model.parameters(), {.beta2 = 0.99f}, {.grad_clip = 1.0f});
  optimizer.allocate(device);
  optimizer.start(model.stream());
  constexpr int kSteps = 600;
  double first = 0, mean = 0;
  for (int step = 0; step < kSteps; ++step) {
    const double loss = model.run(next_batch(text, place), {3e-3f, /*seed=*/42, step, kRows});
    optimizer.step(model.stream(), model.step_block());
    if (step == 0) first = loss;
    mean = step == 0 ? loss : 0.95 * mean + 0.05 * loss;
    if ((step + 1) % 100 == 0) std::printf("step %d  loss %.3f\n", step + 1, mean);
  }
  return error < 1e-3 && mean < 0.4 * first ? 0 : 1;
}
