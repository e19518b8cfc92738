#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/train/sinks.h"

namespace llmc {
namespace {

constexpr double kWidth = 800, kHeight = 480;
constexpr double kLeft = 64, kRight = 24, kTop = 44, kBottom = 52;
constexpr std::size_t kMaxPoints = 2000;

/// A numbered range of values along one side of the picture.
struct Axis {
  double min, max, tick;
  double pixel_min, pixel_max;

  double pixel(double value) const {
    return pixel_min + (value - min) / (max - min) * (pixel_max - pixel_min);
  }
};

// Round numbers that enclose [low, high], about `ticks` of them.
Axis make_axis(double low, double high, int ticks, double pixel_min, double pixel_max) {
  if (!(high > low)) high = low + 1;
  const double rough = (high - low) / ticks;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double tick = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) {
      tick = factor * power;
      break;
    }
  }
  return {std::floor(low / tick) * tick, std::ceil(high / tick) * tick, tick, pixel_min, pixel_max};
}

std::string fixed(double value, int digits) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
  return buffer;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
  }
  return out;
}

// At most kMaxPoints points, each the mean of its neighbours, so that a long run stays readable.
std::vector<LossPoint> thinned(const std::vector<LossPoint>& points) {
  const std::size_t group = (points.size() + kMaxPoints - 1) / kMaxPoints;
  if (group <= 1) return points;
  std::vector<LossPoint> out;
  for (std::size_t begin = 0; begin < points.size(); begin += group) {
    const std::size_t end = std::min(begin + group, points.size());
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += points[i].loss;
    out.push_back({points[end - 1].step, sum / static_cast<double>(end - begin)});
  }
  return out;
}

std::string grid(const Axis& x, const Axis& y) {
  std::string out;
  const auto steps = [](const Axis& axis) {
    return static_cast<int>(std::lround((axis.max - axis.min) / axis.tick));
  };
  const int digits = std::max(0, static_cast<int>(std::ceil(-std::log10(y.tick) - 1e-9)));
  for (int i = 0; i <= steps(y); ++i) {
    const double value = y.min + i * y.tick;
    const std::string at = fixed(y.pixel(value), 1);
    out += concat("<line class=\"grid\" x1=\"", kLeft, "\" x2=\"", kWidth - kRight, "\" y1=\"", at,
                  "\" y2=\"", at, "\"/>\n<text x=\"", kLeft - 8, "\" y=\"", at,
                  "\" dy=\"4\" text-anchor=\"end\">", fixed(value, digits), "</text>\n");
  }
  for (int i = 0; i <= steps(x); ++i) {
    const double value = x.min + i * x.tick;
    const std::string at = fixed(x.pixel(value), 1);
    out += concat("<line class=\"grid\" x1=\"", at, "\" x2=\"", at, "\" y1=\"", kTop, "\" y2=\"",
                  kHeight - kBottom, "\"/>\n<text x=\"", at, "\" y=\"", kHeight - kBottom + 18,
                  "\" text-anchor=\"middle\">", fixed(value, 0), "</text>\n");
  }
  return out;
}

std::string polyline(const std::vector<LossPoint>& points, const Axis& x, const Axis& y,
                     std::string_view kind) {
  std::string out = concat("<polyline class=\"", kind, "\" points=\"");
  for (const LossPoint& p : points) {
    out +=
        concat(fixed(x.pixel(static_cast<double>(p.step)), 1), ",", fixed(y.pixel(p.loss), 1), " ");
  }
  return out + "\"/>\n";
}

std::string legend(const LossCurves& curves) {
  std::string out;
  double top = kTop + 18;
  const auto row = [&](std::string_view kind, std::string_view label,
                       const std::vector<LossPoint>& points) {
    if (points.empty()) return;
    const double left = kWidth - kRight - 190;
    out += concat("<line class=\"", kind, "\" x1=\"", left, "\" x2=\"", left + 26, "\" y1=\"", top,
                  "\" y2=\"", top, "\"/>\n<text x=\"", left + 34, "\" y=\"", top, "\" dy=\"4\">",
                  label, ", last ", fixed(points.back().loss, 4), "</text>\n");
    top += 20;
  };
  row("train", "training", curves.train);
  row("val", "validation", curves.val);
  return out;
}

}  // namespace

std::string loss_svg(const LossCurves& curves, std::string_view title) {
  double low = 0, high = 0, last_step = 0;
  bool any = false;
  for (const auto* points : {&curves.train, &curves.val}) {
    for (const LossPoint& p : *points) {
      low = any ? std::min(low, p.loss) : p.loss;
      high = any ? std::max(high, p.loss) : p.loss;
      last_step = std::max(last_step, static_cast<double>(p.step));
      any = true;
    }
  }
  Axis x = make_axis(0, std::max(last_step, 5.0), 8, kLeft, kWidth - kRight);
  const Axis y = make_axis(low, high, 6, kHeight - kBottom, kTop);
  std::string out =
      concat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", kWidth, " ", kHeight,
             "\" width=\"", kWidth, "\" height=\"", kHeight,
             "\" font-family=\"sans-serif\" font-size=\"12\">\n<style>\n"
             ".grid { stroke: #ddd; }\n"
             ".train { stroke: #4477aa; stroke-width: 1.2; fill: none; }\n"
             ".val { stroke: #cc3311; stroke-width: 2; fill: none; }\n"
             ".dot { fill: #cc3311; }\n</style>\n"
             "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"",
             kLeft, "\" y=\"26\" font-size=\"16\">", escaped(title), "</text>\n", grid(x, y));
  out += concat("<text x=\"", (kLeft + kWidth - kRight) / 2, "\" y=\"", kHeight - 14,
                "\" text-anchor=\"middle\">step</text>\n<text transform=\"translate(18 ",
                (kTop + kHeight - kBottom) / 2,
                ") rotate(-90)\" text-anchor=\"middle\">loss (nats per token)</text>\n");
  if (!curves.train.empty()) out += polyline(thinned(curves.train), x, y, "train");
  if (!curves.val.empty()) out += polyline(thinned(curves.val), x, y, "val");
  for (const LossPoint& p : thinned(curves.val)) {
    out += concat("<circle class=\"dot\" r=\"2.5\" cx=\"",
                  fixed(x.pixel(static_cast<double>(p.step)), 1), "\" cy=\"",
                  fixed(y.pixel(p.loss), 1), "\"/>\n");
  }
  return out + legend(curves) + "</svg>\n";
}

SinkAction LossPlot::on_event(const Event& event) {
  if (!std::holds_alternative<StopEvent>(event)) return SinkAction::kContinue;
  const LossCurves curves = read_loss_curves(folder_ / "log.jsonl");
  write_text(folder_ / "loss.svg",
             loss_svg(curves, folder_.lexically_normal().filename().string()));
  return SinkAction::kContinue;
}

}  // namespace llmc
