#include "ops/cuda/cudnn_attention.h"

// Only this file includes the frontend, a header-only C++ wrapper of cuDNN's graph API.
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <unordered_map>
#include <vector>

#include "llmc/core/error.h"
#include "llmc/core/log.h"

namespace llmc::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using TensorPtr = std::shared_ptr<Tensor_attributes>;

/// The deterministic backward pass keeps the gradients of all scores, which grow with T²; the batch
/// is cut so that no more than this is needed at a time.
constexpr std::int64_t kMaxWorkspace = std::int64_t{256} << 20;
constexpr std::int64_t kAlignment = 16;  // of everything cuDNN reads or writes

std::int64_t round_up(std::int64_t a, std::int64_t multiple) {
  return (a + multiple - 1) / multiple * multiple;
}

bool aligned(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % kAlignment == 0;
}

void* bytes_into(const void* start, std::int64_t bytes) {
  return static_cast<char*>(const_cast<void*>(start)) + bytes;
}

void check(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS) {
    fail(ErrorKind::kDevice, "attention", what, ": ", cudnnGetErrorString(status),
         "; attention = own does without cuDNN");
  }
}

/// Leaves a case to the own kernels, unless cuDNN was asked for. The parts of the reason are only
/// joined then: a step in steady state allocates nothing.
template <class... Why>
bool decline(const Stream::Impl& stream, const Why&... why) {
  if (stream.device.impl().attention == AttentionKind::kCudnn) {
    fail(ErrorKind::kConfig, "attention", "expected what cuDNN can compute, as it was asked for, ",
         "got ", why..., "; attention = auto falls back on this library's own kernels");
  }
  return false;
}

/// Whether cuDNN may take tensors of this kind.
bool takes(const Stream::Impl& stream, DType dtype, const AttentionHeads& h) {
  if (dtype != DType::kBF16) return decline(stream, "tensors of ", name_of(dtype));
  if (h.HS % 8 != 0) {
    return decline(stream, "a head size of ", h.HS, ", no multiple of 8");
  }
  if (h.T < 2) return decline(stream, "a single token");
  return true;
}

/// Numbers of a graph's tensors.
enum Id : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,
  kScale,
  kDout,
  kDq,
  kDk,
  kDv,
  kQueryTokens,
  kKeyTokens,
};

/// A graph is built for `sequences` sequences and `kv_heads` key heads, with their queries, cut out
/// of tensors with the given numbers of heads.
struct GraphSizes {
  bool backward;
  std::int64_t sequences;
  std::int64_t kv_heads;
  AttentionHeads whole;

  std::int64_t heads() const { return kv_heads * whole.group(); }
  auto key() const {
    return std::array{
        std::int64_t{backward}, sequences, kv_heads, whole.T, whole.NH, whole.NKV, whole.HS};
  }
  friend std::ostream& operator<<(std::ostream& out, const GraphSizes& s) {
    return out << (s.backward ? "the backward pass of " : "") << s.heads() << " heads with "
               << s.kv_heads << " key heads of size " << s.whole.HS << " over " << s.whole.T
               << " tokens";
  }
};

/// What makes a tensor of the dims and strides of (sequences, heads, T, HS) within qkv or out.
Tensor_attributes heads_within(const GraphSizes& s, std::int64_t heads, std::int64_t token) {
  return Tensor_attributes()
      .set_dim({s.sequences, heads, s.whole.T, s.whole.HS})
      .set_stride({s.whole.T * token, s.whole.HS, token, 1});
}

class Graph {
 public:
  /// Compiles; afterwards why() says whether cuDNN takes it.
  Graph(const Stream::Impl& stream, cudnnHandle_t handle, const GraphSizes& sizes);

  const std::string& why() const { return why_; }
  std::int64_t workspace() const { return workspace_; }
  void run(cudnnHandle_t handle, std::unordered_map<std::int64_t, void*>& tensors, float scale,
           void* workspace);

 private:
  TensorPtr input(Id id, Tensor_attributes attributes) {
    return graph_.tensor(attributes.set_uid(id));
  }
  void add_forward(const GraphSizes& s);
  void add_backward(const GraphSizes& s, const Device& device);
  void build(cudnnHandle_t handle);

  fe::graph::Graph graph_;
  Buffer lengths_;
  std::string why_;
  std::int64_t workspace_ = 0;
};

Graph::Graph(const Stream::Impl& stream, cudnnHandle_t handle, const GraphSizes& sizes) {
  graph_.set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  try {
    if (sizes.backward) {
      add_backward(sizes, stream.device);
    } else {
      add_forward(sizes);
    }
    build(handle);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    why_ = e.what();
  }
}

Tensor_attributes scale_attributes() {
  return Tensor_attributes()
      .set_dim({1, 1, 1, 1})
      .set_stride({1, 1, 1, 1})
      .set_is_pass_by_value(true)
      .set_data_type(fe::DataType_t::FLOAT);
}

/// (sequences, heads, T, 1), contiguous.
Tensor_attributes lse_attributes(const GraphSizes& s) {
  const std::int64_t T = s.whole.T;
  return Tensor_attributes()
      .set_dim({s.sequences, s.heads(), T, 1})
      .set_stride({s.heads() * T, T, 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
}

void set_output(const TensorPtr& tensor, Id id, const Tensor_attributes& like) {
  tensor->set_output(true).set_uid(id).set_dim(like.get_dim()).set_stride(like.get_stride());
}

void Graph::add_forward(const GraphSizes& s) {
  const Tensor_attributes queries = heads_within(s, s.heads(), s.whole.qkv_stride());
  const Tensor_attributes keys = heads_within(s, s.kv_heads, s.whole.qkv_stride());
  auto attributes = fe::graph::SDPA_attributes()
                        .set_generate_stats(true)
                        .set_attn_scale(input(kScale, scale_attributes()))
                        .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                        .set_diagonal_band_right_bound(0);
  const auto [out, lse] =
      graph_.sdpa(input(kQ, queries), input(kK, keys), input(kV, keys), std::move(attributes));
  set_output(out, kOut, heads_within(s, s.heads(), s.whole.out_stride()));
  set_output(lse, kLse, lse_attributes(s));
  lse->set_data_type(fe::DataType_t::FLOAT);
}

void Graph::add_backward(const GraphSizes& s, const Device& device) {
  const Tensor_attributes queries = heads_within(s, s.heads(), s.whole.qkv_stride());
  const Tensor_attributes keys = heads_within(s, s.kv_heads, s.whole.qkv_stride());
  const Tensor_attributes outs = heads_within(s, s.heads(), s.whole.out_stride());
  auto attributes = fe::graph::SDPA_backward_attributes()
                        .set_attn_scale(input(kScale, scale_attributes()))
                        .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                        .set_diagonal_band_right_bound(0)
                        .set_deterministic_algorithm(true);
  if (s.whole.T % 128 != 0) {
    // Up to 9.15 cuDNN needs to be told where such sequences end. The frontend would do so with a
    // copy from host memory in every call.
    const std::vector<std::int32_t> lengths(static_cast<std::size_t>(s.sequences),
                                            static_cast<std::int32_t>(s.whole.T));
    const std::size_t bytes = lengths.size() * sizeof(std::int32_t);
    lengths_ = Buffer(device, bytes);
    cuda::check(cudaMemcpy(lengths_.data(), lengths.data(), bytes, cudaMemcpyHostToDevice),
                "attention: lengths of sequences");
    const Tensor_attributes per_sequence = Tensor_attributes()
                                               .set_dim({s.sequences, 1, 1, 1})
                                               .set_stride({1, 1, 1, 1})
                                               .set_data_type(fe::DataType_t::INT32);
    attributes.set_padding_mask(true)
        .set_seq_len_q(input(kQueryTokens, per_sequence))
        .set_seq_len_kv(input(kKeyTokens, per_sequence));
  }
  const auto [dq, dk, dv] = graph_.sdpa_backward(
      input(kQ, queries), input(kK, keys), input(kV, keys), input(kOut, outs), input(kDout, outs),
      input(kLse, lse_attributes(s)), std::move(attributes));
  set_output(dq, kDq, queries);
  set_output(dk, kDk, keys);
  set_output(dv, kDv, keys);
}

void Graph::build(cudnnHandle_t handle) {
  auto status = graph_.build(handle, {fe::HeurMode_t::A});
  if (status.is_good()) {
    workspace_ = graph_.get_workspace_size();
  } else {
    // The first line says what, those that follow are a trace.
    const std::string text = status.get_message();
    why_ = text.empty() ? "no reason given" : text.substr(0, text.find('\n'));
  }
}

void Graph::run(cudnnHandle_t handle, std::unordered_map<std::int64_t, void*>& tensors, float scale,
                void* workspace) {
  tensors[kScale] = &scale;
  if (lengths_.data() != nullptr) tensors[kQueryTokens] = tensors[kKeyTokens] = lengths_.data();
  auto status = graph_.execute(handle, tensors, workspace);
  if (!status.is_good()) {
    fail(ErrorKind::kDevice, "attention", "expected cuDNN to run what it built, got ",
         status.get_message());
  }
}

/// The handle and the graphs of a Stream.
class CudnnState : public StreamState {
 public:
  explicit CudnnState(cudaStream_t stream) {
    check(cudnnCreate(&handle_), "cannot start cuDNN");
    const cudnnStatus_t status = cudnnSetStream(handle_, stream);
    if (status != CUDNN_STATUS_SUCCESS) cudnnDestroy(handle_);
    check(status, "cannot use the stream");
  }
  ~CudnnState() override {
    graphs_.clear();
    cudnnDestroy(handle_);
  }

  cudnnHandle_t handle() const { return handle_; }

  /// The graph for these sizes, or null after declining them.
  Graph* find(const Stream::Impl& stream, const GraphSizes& sizes) {
    auto at = graphs_.find(sizes.key());
    if (at == graphs_.end()) {
      at = graphs_.emplace(sizes.key(), std::make_unique<Graph>(stream, handle_, sizes)).first;
      const std::string& why = at->second->why();
      if (!why.empty() && stream.device.impl().attention == AttentionKind::kAuto) {
        log(LogLevel::kWarning, concat("attention: cuDNN does not take ", sizes, " (", why,
                                       "); this library's own kernels compute it"));
      }
    }
    Graph* const graph = at->second.get();
    if (graph->why().empty()) return graph;
    decline(stream, sizes, ": ", graph->why());
    return nullptr;
  }

 private:
  using Key = decltype(GraphSizes{}.key());

  cudnnHandle_t handle_ = nullptr;
  std::map<Key, std::unique_ptr<Graph>> graphs_;
};

CudnnState& state_of(Stream::Impl& stream) {
  if (stream.attention_state == nullptr) {
    stream.attention_state = std::make_unique<CudnnState>(stream.stream);
  }
  return static_cast<CudnnState&>(*stream.attention_state);
}

/// Workspace that the deterministic backward pass is expected to need: a bf16 score gradient per
/// pair of tokens in tiles of 64 × 128, a sum per query and, where queries share key heads, the
/// gradients of keys and values for each of them.
std::int64_t expected_workspace(const AttentionHeads& h, std::int64_t kv_heads) {
  const std::int64_t scores = round_up(h.T, 64) * round_up(h.T, 128) * 2;
  const std::int64_t shared = h.group() > 1 ? 4 * h.T * h.HS : 0;
  return kv_heads * h.group() * (scores + 4 * h.T + shared);
}

std::int64_t largest_divisor(std::int64_t n, std::int64_t at_most) {
  std::int64_t d = std::min(n, at_most);
  while (d > 1 && n % d != 0) --d;
  return d;
}

/// A piece of the batch whose backward pass is expected to fit in `bytes`: whole sequences if one
/// fits, all pieces alike if that does not make them much smaller; else some heads of a sequence.
/// None fits: 0 sequences.
GraphSizes piece_for(const AttentionHeads& h, std::int64_t bytes) {
  const std::int64_t fit = bytes / expected_workspace(h, h.NKV);
  if (fit >= h.B) return {true, h.B, h.NKV, h};
  // Where a piece starts, lse must be aligned too.
  const auto step_of = [](std::int64_t floats) {
    return kAlignment / 4 / std::gcd(kAlignment / 4, floats);
  };
  if (const std::int64_t step = step_of(h.NH * h.T); fit >= step) {
    const std::int64_t pieces = (h.B + fit - 1) / fit;
    const std::int64_t even = (h.B + pieces - 1) / pieces;
    const std::int64_t alike = largest_divisor(h.B, fit);
    if (4 * alike >= 3 * even && alike % step == 0) return {true, alike, h.NKV, h};
    return {true, std::min(round_up(even, step), fit / step * step), h.NKV, h};
  }
  const std::int64_t kv_heads = largest_divisor(h.NKV, bytes / expected_workspace(h, 1));
  const std::int64_t step = step_of(h.group() * h.T);
  if (kv_heads < 1 || kv_heads % step != 0 || (h.NH * h.T) % step_of(1) != 0)
    return {true, 0, 0, h};
  return {true, 1, kv_heads, h};
}

/// The largest piece that really fits, or null after declining.
Graph* graph_for(Stream::Impl& stream, const AttentionHeads& h, std::int64_t bytes,
                 GraphSizes& piece) {
  for (std::int64_t limit = bytes; limit > 0; limit /= 2) {
    piece = piece_for(h, limit);
    if (piece.sequences == 0) break;
    Graph* const graph = state_of(stream).find(stream, piece);
    if (graph == nullptr || graph->workspace() <= bytes) return graph;
  }
  decline(stream, h.T, " tokens, too many for a workspace of ", bytes, " bytes");
  return nullptr;
}

/// Queues the backward pass of a piece from sequence b and key head kv on.
void run_piece(Stream::Impl& stream, Graph& graph, const FlashBackward& args, std::int64_t b,
               std::int64_t kv) {
  constexpr std::int64_t kBytes = 2;  // of a bf16
  const AttentionHeads& h = args.heads;
  const std::int64_t head = kv * h.group();
  const std::int64_t row = b * h.T * h.qkv_stride();
  const std::int64_t q = kBytes * (row + head * h.HS);
  const std::int64_t k = kBytes * (row + (h.NH + kv) * h.HS);
  const std::int64_t v = k + kBytes * h.NKV * h.HS;
  const std::int64_t out = kBytes * (b * h.T * h.out_stride() + head * h.HS);
  std::unordered_map<std::int64_t, void*> tensors = {
      {kQ, bytes_into(args.qkv, q)},
      {kK, bytes_into(args.qkv, k)},
      {kV, bytes_into(args.qkv, v)},
      {kOut, bytes_into(args.out, out)},
      {kDout, bytes_into(args.dout, out)},
      {kLse, bytes_into(args.lse, 4 * (b * h.NH + head) * h.T)},
      {kDq, bytes_into(args.dqkv, q)},
      {kDk, bytes_into(args.dqkv, k)},
      {kDv, bytes_into(args.dqkv, v)},
  };
  graph.run(state_of(stream).handle(), tensors, args.scale, args.scratch);
}

}  // namespace

bool cudnn_attention_forward(Stream::Impl& stream, const FlashForward& args) {
  const AttentionHeads& h = args.heads;
  if (!takes(stream, args.dtype, h)) return false;
  if (!aligned(args.out) || !aligned(args.q) || !aligned(args.lse)) {
    return decline(stream, "tensors that do not start at a multiple of 16 bytes");
  }
  Graph* const graph = state_of(stream).find(stream, {false, h.B, h.NKV, h});
  if (graph == nullptr) return false;
  // One graph serves calls that want lse and calls that do not.
  const Buffer& space = stream.matmul_workspace;
  const std::int64_t lse_at = round_up(graph->workspace(), kAlignment);
  const std::int64_t lse_bytes = args.lse == nullptr ? 4 * h.B * h.NH * h.T : 0;
  if (lse_at + lse_bytes > static_cast<std::int64_t>(space.bytes())) {
    return decline(stream, "a workspace of ", lse_at + lse_bytes, " bytes");
  }
  std::unordered_map<std::int64_t, void*> tensors = {
      {kQ, bytes_into(args.q, 0)},
      {kK, bytes_into(args.k, 0)},
      {kV, bytes_into(args.v, 0)},
      {kOut, args.out},
      {kLse, args.lse != nullptr ? args.lse : bytes_into(space.data(), lse_at)},
  };
  graph->run(state_of(stream).handle(), tensors, args.scale, space.data());
  return true;
}

std::int64_t cudnn_attention_backward_scratch(Stream::Impl& stream, DType dtype,
                                              const AttentionHeads& heads) {
  if (heads.B == 0 || !takes(stream, dtype, heads)) return 0;
  GraphSizes piece;
  const Graph* const graph = graph_for(stream, heads, kMaxWorkspace, piece);
  return graph != nullptr ? graph->workspace() : 0;
}

bool cudnn_attention_backward(Stream::Impl& stream, const FlashBackward& args,
                              std::int64_t scratch_bytes) {
  const AttentionHeads& h = args.heads;
  if (!takes(stream, args.dtype, h)) return false;
  for (const void* const start :
       {args.qkv, static_cast<const void*>(args.dqkv), args.out, args.dout,
        static_cast<const void*>(args.lse), static_cast<const void*>(args.scratch)}) {
    if (!aligned(start)) {
      return decline(stream, "tensors that do not start at a multiple of 16 bytes");
    }
  }
  GraphSizes piece;
  Graph* const graph = graph_for(stream, h, std::min(scratch_bytes, kMaxWorkspace), piece);
  if (graph == nullptr) return false;
  GraphSizes rest = piece;
  rest.sequences = h.B % piece.sequences;
  Graph* const last = rest.sequences > 0 ? state_of(stream).find(stream, rest) : graph;
  if (last == nullptr || last->workspace() > scratch_bytes) return false;
  for (std::int64_t b = 0; b < h.B; b += piece.sequences) {
    for (std::int64_t kv = 0; kv < h.NKV; kv += piece.kv_heads) {
      run_piece(stream, b + piece.sequences <= h.B ? *graph : *last, args, b, kv);
    }
  }
  return true;
}

}  // namespace llmc::cuda
