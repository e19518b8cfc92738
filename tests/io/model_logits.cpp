// Computes the logits of any model that llmc opens, for comparison with other programs:
//   model_logits MODEL TOKENS.safetensors OUT.safetensors
// `tokens` is (B, T) int32 in the input, `logits` (B, T, V) f32 in the output.

#include <exception>
#include <iostream>
#include <vector>

#include "llmc/io/model_loader.h"
#include "llmc/io/safetensors.h"
#include "llmc/nn/transformer.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "model_logits: expected a model, a file of tokens and an output file\n";
    return 2;
  }
  try {
    llmc::ModelLoader loader(argv[1]);
    llmc::SafetensorsReader input(argv[2]);
    const auto tokens = input.values<std::int32_t>("tokens");
    const llmc::Shape shape = input.at("tokens").shape();
    const std::int64_t B = shape.dim(0), T = shape.dim(1), V = loader.config().vocab_size;
    llmc::TransformerOptions options;
    options.micro_batch = B;
    options.seq_len = T;
    options.dtype = loader.dtype();
    options.training = false;
    llmc::Transformer model(llmc::Device::open(), loader.config(), options);
    model.allocate();
    loader.read_weights(model.stream(), model.parameters());
    std::vector<float> logits(static_cast<std::size_t>(B * T * V));
    model.logits(logits, tokens);
    llmc::SafetensorsWriter output(argv[3], {{"logits", llmc::DType::kF32, {B, T, V}}});
    output.write("logits", logits.data(), logits.size() * sizeof(float));
    output.commit();
  } catch (const std::exception& error) {
    std::cerr << "model_logits: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
