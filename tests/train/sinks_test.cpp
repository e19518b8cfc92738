#include "llmc/train/sinks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "llmc/core/error.h"
#include "llmc/core/file.h"

namespace llmc {
namespace {

class SinksTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() / concat("llmc_sinks_", test->name());
    std::filesystem::remove_all(folder_);
    make_folders(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

StepEvent step_event(std::int64_t step, float loss) {
  StepEvent event;
  event.step = step;
  event.total_steps = 100;
  event.loss = loss;
  event.grad_norm = 1.25f;
  event.lr = 3e-4f;
  event.tokens = step * 64;
  event.ms = 12.5;
  event.tokens_per_s = 5120;
  return event;
}

ValEvent val_event(std::int64_t step, double loss) {
  ValEvent event;
  event.step = step;
  event.loss = loss;
  return event;
}

TEST_F(SinksTest, JsonLinesHoldEveryField) {
  const auto json = nlohmann::json::parse(json_line(step_event(3, 0.1f)));
  EXPECT_EQ(json["event"], "step");
  EXPECT_EQ(json["step"], 3);
  EXPECT_EQ(json["loss"].get<float>(), 0.1f);
  EXPECT_EQ(json["tokens"], 192);
  EXPECT_TRUE(json["mfu"].is_null());
  for (const char* key : {"grad_norm", "lr", "ms", "tokens_per_s"}) EXPECT_TRUE(json.contains(key));
  EXPECT_NE(json_line(step_event(3, 0.1f)).find("\"loss\":0.1,"), std::string::npos);
}

TEST_F(SinksTest, JsonLineOfEveryEventParses) {
  const std::vector<Event> events = {StartEvent{},
                                     StepEvent{},
                                     SkipEvent{},
                                     ValEvent{},
                                     SampleEvent{
                                         5,
                                         "a \"b\"\n\xff",
                                     },
                                     CheckpointEvent{7, "x/y", 3.5},
                                     StopEvent{}};
  for (const Event& event : events) {
    const std::string line = json_line(event);
    EXPECT_EQ(line.find('\n'), std::string::npos);
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json["step"].get<std::int64_t>(), step_of(event));
  }
}

TEST_F(SinksTest, NonFiniteNumbersAreNull) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(nlohmann::json::parse(json_line(step_event(1, nan)))["loss"].is_null());
  SkipEvent skip;
  skip.loss = std::numeric_limits<float>::infinity();
  skip.reason = kNonFiniteLoss;
  const auto json = nlohmann::json::parse(json_line(skip));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_EQ(json["reason"], "loss not finite");
}

TEST_F(SinksTest, LossesKeepTheirBits) {
  std::mt19937 random(5);
  for (int i = 0; i < 1000; ++i) {
    const float loss = std::uniform_real_distribution<float>(0.0f, 12.0f)(random);
    EXPECT_EQ(nlohmann::json::parse(json_line(step_event(1, loss)))["loss"].get<float>(), loss);
  }
}

TEST_F(SinksTest, MainLogHasTheStepsOfLlmc) {
  MainLog log(folder_ / "main.log");
  log.on_event(val_event(0, 10.98765));
  log.on_event(step_event(1, 10.5f));
  log.on_event(SampleEvent{1, "text"});
  EXPECT_EQ(read_text(folder_ / "main.log"),
            "s:0 tel:10.9877\ns:0 trl:10.5000 lr:0.000300 norm:1.25\n");
}

TEST_F(SinksTest, StepsThatAreNotToBeLoggedAreLeftOut) {
  JsonLog json(folder_ / "log.jsonl");
  MainLog main(folder_ / "main.log");
  StepEvent event = step_event(2, 1.0f);
  event.log = false;
  json.on_event(event);
  main.on_event(event);
  EXPECT_EQ(read_text(folder_ / "log.jsonl"), "");
  EXPECT_EQ(read_text(folder_ / "main.log"), "");
}

TEST_F(SinksTest, CutsBothLogsToTheSameMoment) {
  {
    JsonLog json(folder_ / "log.jsonl");
    MainLog main(folder_ / "main.log");
    const auto both = [&](const Event& event) {
      json.on_event(event);
      main.on_event(event);
    };
    both(StartEvent{});
    both(val_event(0, 5));
    for (int step = 1; step <= 6; ++step) {
      both(step_event(step, 4.0f));
      if (step % 2 == 0) both(val_event(step, 4.5));
    }
  }
  AppendFile(folder_ / "log.jsonl").append("{\"event\":\"st");
  AppendFile(folder_ / "main.log").append("s:6 trl:3.");
  cut_json_log(folder_ / "log.jsonl", 4);
  cut_main_log(folder_ / "main.log", 4);
  const LossCurves curves = read_loss_curves(folder_ / "log.jsonl");
  ASSERT_EQ(curves.train.size(), 4u);
  ASSERT_EQ(curves.val.size(), 3u);
  EXPECT_EQ(curves.train.back().step, 4);
  EXPECT_EQ(curves.val.back().step, 4);
  const std::string main = read_text(folder_ / "main.log");
  EXPECT_NE(main.find("s:4 tel:"), std::string::npos);
  EXPECT_NE(main.find("s:3 trl:"), std::string::npos);
  EXPECT_EQ(main.find("s:4 trl:"), std::string::npos);
  EXPECT_EQ(main.find("s:6"), std::string::npos);
}

TEST_F(SinksTest, CuttingRefusesWhatIsNoLogAndLeavesIt) {
  write_text(folder_ / "log.jsonl", "not a log\n");
  write_text(folder_ / "main.log", "neither\n");
  EXPECT_THROW(cut_json_log(folder_ / "log.jsonl", 4), Error);
  EXPECT_THROW(cut_main_log(folder_ / "main.log", 4), Error);
  EXPECT_EQ(read_text(folder_ / "log.jsonl"), "not a log\n");
  EXPECT_NO_THROW(cut_json_log(folder_ / "none.jsonl", 4));
}

// Every tag is closed, in order, and attributes are quoted.
void expect_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  std::size_t at = 0;
  while ((at = xml.find('<', at)) != std::string::npos) {
    const std::size_t end = xml.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = xml.substr(at + 1, end - at - 1);
    ASSERT_EQ(tag.find('<'), std::string::npos) << tag;
    EXPECT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    const std::string name =
        tag.substr(tag[0] == '/' ? 1 : 0, tag.find_first_of(" /", 1) - (tag[0] == '/' ? 1 : 0));
    if (tag[0] == '/') {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ("/" + open.back(), tag);
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    at = end;
  }
  EXPECT_TRUE(open.empty());
}

TEST_F(SinksTest, SvgIsWellFormed) {
  LossCurves curves;
  std::mt19937 random(3);
  for (int step = 1; step <= 5000; ++step) {
    curves.train.push_back(
        {step, 8.0 / std::sqrt(step) + 0.001 * static_cast<double>(random() % 100)});
  }
  for (int step = 0; step <= 5000; step += 500) curves.val.push_back({step, 3.0});
  const std::string svg = loss_svg(curves, "a<b> & \"c\"");
  expect_well_formed(svg);
  EXPECT_NE(svg.find("a&lt;b&gt; &amp; &quot;c&quot;"), std::string::npos);
  EXPECT_NE(svg.find("class=\"train\" points"), std::string::npos);
  EXPECT_NE(svg.find("class=\"val\" points"), std::string::npos);
  EXPECT_NE(svg.find(">5000</text>"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_LT(svg.size(), 100000u);
}

TEST_F(SinksTest, SvgOfDegenerateCurves) {
  for (const LossCurves& curves :
       {LossCurves{}, LossCurves{{{1, 2.0}}, {}}, LossCurves{{}, {{0, 2.0}, {3, 2.0}}}}) {
    const std::string svg = loss_svg(curves, "x");
    expect_well_formed(svg);
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
  }
}

TEST_F(SinksTest, PlotIsDrawnWhenTheRunEnds) {
  JsonLog log(folder_ / "log.jsonl");
  LossPlot plot(folder_);
  for (int step = 1; step < 4; ++step) {
    log.on_event(step_event(step, 3.0f / static_cast<float>(step)));
    plot.on_event(step_event(step, 3.0f));
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "loss.svg"));
  plot.on_event(StopEvent{});
  expect_well_formed(read_text(folder_ / "loss.svg"));
}

}  // namespace
}  // namespace llmc
