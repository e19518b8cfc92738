#include "support/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace llmc::testing {

double stored(Arithmetic arithmetic, double x) {
  return arithmetic == Arithmetic::kExact ? x : to_f32(to_bf16(static_cast<float>(x)));
}

double gelu(double x) {
  const double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1 + std::tanh(u));
}

double gelu_gradient(double x) {
  const double k = std::sqrt(2 / std::numbers::pi);
  const double t = std::tanh(k * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x);
}

LayerNormForward layernorm_forward(Arithmetic arithmetic, const Values& in, const Values& weight,
                                   const Values& bias, double eps) {
  const std::size_t C = weight.size();
  const std::size_t N = in.size() / C;
  LayerNormForward f{Values(in.size()), Values(N), Values(N)};
  for (std::size_t n = 0; n < N; ++n) {
    const double* const x = &in[n * C];
    double mean = 0;
    for (std::size_t c = 0; c < C; ++c) mean += x[c];
    mean /= static_cast<double>(C);
    double variance = 0;
    for (std::size_t c = 0; c < C; ++c) variance += (x[c] - mean) * (x[c] - mean);
    variance /= static_cast<double>(C);
    f.mean[n] = mean;
    f.rstd[n] = 1 / std::sqrt(variance + eps);
    for (std::size_t c = 0; c < C; ++c) {
      const double y = (x[c] - mean) * f.rstd[n] * weight[c] + (bias.empty() ? 0 : bias[c]);
      f.out[n * C + c] = stored(arithmetic, y);
    }
  }
  return f;
}

LayerNormBackward layernorm_backward(Arithmetic arithmetic, const Values& dout, const Values& in,
                                     const Values& weight, double eps) {
  const std::size_t C = weight.size();
  const std::size_t N = in.size() / C;
  const LayerNormForward f = layernorm_forward(Arithmetic::kExact, in, weight, {}, eps);
  LayerNormBackward g{Values(in.size()), Values(C), Values(C)};
  for (std::size_t n = 0; n < N; ++n) {
    Values norm(C);
    double dnorm_mean = 0;
    double dnorm_norm_mean = 0;
    for (std::size_t c = 0; c < C; ++c) {
      const double dy = dout[n * C + c];
      norm[c] = (in[n * C + c] - f.mean[n]) * f.rstd[n];
      g.dweight[c] += dy * norm[c];
      g.dbias[c] += dy;
      dnorm_mean += dy * weight[c] / static_cast<double>(C);
      dnorm_norm_mean += dy * weight[c] * norm[c] / static_cast<double>(C);
    }
    for (std::size_t c = 0; c < C; ++c) {
      const double dnorm = dout[n * C + c] * weight[c];
      const double dx = f.rstd[n] * (dnorm - dnorm_mean - norm[c] * dnorm_norm_mean);
      g.din[n * C + c] = stored(arithmetic, dx);
    }
  }
  return g;
}

namespace {

/// Softmax rows of one query head, (T, T), zero above the diagonal.
Values probabilities(Arithmetic a, const AttentionSizes& s, const Values& qkv, double scale,
                     std::int64_t b, std::int64_t h, double* lse) {
  const auto row = [&](std::int64_t t, std::int64_t head) {
    return &qkv[static_cast<std::size_t>(((b * s.T + t) * s.heads() + head) * s.HS)];
  };
  const std::int64_t kv = s.NH + h / (s.NH / s.NKV);
  Values p(static_cast<std::size_t>(s.T * s.T));
  for (std::int64_t i = 0; i < s.T; ++i) {
    double* const pi = &p[static_cast<std::size_t>(i * s.T)];
    double largest = -std::numeric_limits<double>::infinity();
    for (std::int64_t j = 0; j <= i; ++j) {
      double dot = 0;
      for (std::int64_t d = 0; d < s.HS; ++d) dot += row(i, h)[d] * row(j, kv)[d];
      pi[j] = stored(a, stored(a, dot) * scale);
      largest = std::max(largest, pi[j]);
    }
    double sum = 0;
    for (std::int64_t j = 0; j <= i; ++j) sum += std::exp(pi[j] - largest);
    for (std::int64_t j = 0; j <= i; ++j) pi[j] = stored(a, std::exp(pi[j] - largest) / sum);
    if (lse != nullptr) lse[i] = largest + std::log(sum);
  }
  return p;
}

std::size_t index(const AttentionSizes& s, std::int64_t heads, std::int64_t b, std::int64_t t,
                  std::int64_t head) {
  return static_cast<std::size_t>(((b * s.T + t) * heads + head) * s.HS);
}

}  // namespace

AttentionForward attention_forward(Arithmetic arithmetic, const AttentionSizes& s,
                                   const Values& qkv, double scale) {
  AttentionForward f{Values(static_cast<std::size_t>(s.B * s.T * s.NH * s.HS)),
                     Values(static_cast<std::size_t>(s.B * s.NH * s.T))};
  for (std::int64_t b = 0; b < s.B; ++b) {
    for (std::int64_t h = 0; h < s.NH; ++h) {
      const std::int64_t v_head = s.NH + s.NKV + h / (s.NH / s.NKV);
      const Values p = probabilities(arithmetic, s, qkv, scale, b, h,
                                     &f.lse[static_cast<std::size_t>((b * s.NH + h) * s.T)]);
      for (std::int64_t i = 0; i < s.T; ++i) {
        double* const out = &f.out[index(s, s.NH, b, i, h)];
        for (std::int64_t j = 0; j <= i; ++j) {
          const double* const v = &qkv[index(s, s.heads(), b, j, v_head)];
          const double weight = p[static_cast<std::size_t>(i * s.T + j)];
          for (std::int64_t d = 0; d < s.HS; ++d) out[d] += weight * v[d];
        }
        for (std::int64_t d = 0; d < s.HS; ++d) out[d] = stored(arithmetic, out[d]);
      }
    }
  }
  return f;
}

Values attention_backward(Arithmetic a, const AttentionSizes& s, const Values& dout,
                          const Values& qkv, double scale) {
  Values dqkv(qkv.size());
  for (std::int64_t b = 0; b < s.B; ++b) {
    for (std::int64_t h = 0; h < s.NH; ++h) {
      const std::int64_t k_head = s.NH + h / (s.NH / s.NKV);
      const std::int64_t v_head = k_head + s.NKV;
      const Values p = probabilities(a, s, qkv, scale, b, h, nullptr);
      for (std::int64_t i = 0; i < s.T; ++i) {
        const double* const pi = &p[static_cast<std::size_t>(i * s.T)];
        const double* const dy = &dout[index(s, s.NH, b, i, h)];
        const std::size_t q_at = index(s, s.heads(), b, i, h);
        Values dp(static_cast<std::size_t>(i + 1));
        double delta = 0;
        for (std::int64_t j = 0; j <= i; ++j) {
          const std::size_t v_at = index(s, s.heads(), b, j, v_head);
          double dot = 0;
          for (std::int64_t d = 0; d < s.HS; ++d) {
            const auto e = static_cast<std::size_t>(d);
            dot += dy[d] * qkv[v_at + e];
            dqkv[v_at + e] += pi[j] * dy[d];
          }
          dp[static_cast<std::size_t>(j)] = stored(a, dot);
          delta += pi[j] * dp[static_cast<std::size_t>(j)];
        }
        for (std::int64_t j = 0; j <= i; ++j) {
          const double ds = stored(a, pi[j] * (dp[static_cast<std::size_t>(j)] - delta)) * scale;
          const std::size_t k_at = index(s, s.heads(), b, j, k_head);
          for (std::size_t d = 0; d < static_cast<std::size_t>(s.HS); ++d) {
            dqkv[q_at + d] += ds * qkv[k_at + d];
            dqkv[k_at + d] += ds * qkv[q_at + d];
          }
        }
      }
    }
  }
  for (double& x : dqkv) x = stored(a, x);
  return dqkv;
}

CrossEntropy cross_entropy(Arithmetic a, const Values& logits, const Values& targets,
                           std::int64_t V, double dloss) {
  const std::size_t R = targets.size();
  const std::size_t Vp = logits.size() / R;
  CrossEntropy result{Values(R), Values(logits.size())};
  for (std::size_t r = 0; r < R; ++r) {
    if (targets[r] < 0) continue;
    const double* const x = &logits[r * Vp];
    const double largest = *std::max_element(x, x + V);
    double sum = 0;
    for (std::int64_t v = 0; v < V; ++v) sum += std::exp(x[v] - largest);
    const auto target = static_cast<std::int64_t>(targets[r]);
    result.losses[r] = largest + std::log(sum) - x[target];
    for (std::int64_t v = 0; v < V; ++v) {
      const double p = std::exp(x[v] - largest) / sum;
      result.dlogits[r * Vp + static_cast<std::size_t>(v)] =
          stored(a, dloss * (p - (v == target ? 1 : 0)));
    }
  }
  return result;
}

void adamw(AdamWState& state, const Values& grad, double lr, double grad_scale,
           const AdamWOptions& options, std::int64_t t) {
  const double beta1 = options.beta1;
  const double beta2 = options.beta2;
  for (std::size_t i = 0; i < grad.size(); ++i) {
    const double g = grad[i] * grad_scale;
    state.m[i] = beta1 * state.m[i] + (1 - beta1) * g;
    state.v[i] = beta2 * state.v[i] + (1 - beta2) * g * g;
    const double m = state.m[i] / (1 - std::pow(beta1, static_cast<double>(t)));
    const double v = state.v[i] / (1 - std::pow(beta2, static_cast<double>(t)));
    state.theta[i] -= lr * (m / (std::sqrt(v) + options.eps) +
                            static_cast<double>(options.weight_decay) * state.theta[i]);
  }
}

}  // namespace llmc::testing
