#include "cli/console.h"

#include <gtest/gtest.h>

#include <sstream>

#include "llmc/core/error.h"

namespace llmc::cli {
namespace {

StepEvent step_event(std::int64_t step, bool log) {
  StepEvent event;
  event.step = step;
  event.total_steps = 200;
  event.loss = 3.25f;
  event.grad_norm = 0.5f;
  event.lr = 3e-4f;
  event.ms = 12.5;
  event.tokens_per_s = 123456;
  event.seconds_left = 125;
  event.log = log;
  return event;
}

StartEvent start_event() {
  StartEvent event;
  event.total_steps = 200;
  event.parameters = 124475904;
  event.val_tokens = 1000;
  event.val_entropy_bits_per_byte = 0.4275;
  return event;
}

TEST(Console, PlainLines) {
  std::ostringstream out;
  {
    Console console(out, false);
    console.on_event(start_event());
    console.on_event(step_event(7, true));
    console.on_event(step_event(8, false));
    ValEvent val;
    val.step = 8;
    val.loss = 2.5;
    val.bits_per_byte = 3.5;
    val.best = true;
    console.on_event(val);
    console.on_event(SampleEvent{8, "a\x1b[31mb\nc"});
    console.on_event(SkipEvent{9, kNonFiniteLoss, 1.0f, 2.0f, 3});
  }
  const std::string text = out.str();
  for (const char* part :
       {"124,475,904 parameters",
        "step   7/200 | loss 3.250000 | norm  0.5000 | lr 3.00e-04 |    12.50 ms | 123,456 tok/s | "
        "MFU n/a | 2 min 05 s left\n",
        "step   8/200 | val loss 2.500000 | 3.5000 bits per byte (entropy 0.4275) | 0 ms | best so "
        "far\n",
        "--- sample after step 8 ---\na?[31mb\nc\n---\n",
        "step   9/200 | skipped: loss not finite (loss 1, norm 2, 3 in a row)\n"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "not in:\n" << text;
  }
  EXPECT_EQ(text.find("step   8/200 | loss"), std::string::npos);
  EXPECT_EQ(text.find('\r'), std::string::npos);
}

TEST(Console, ProgressStaysBelowTheLines) {
  std::ostringstream out;
  {
    Console console(out, true);
    console.on_event(start_event());
    console.on_event(step_event(100, true));
    console.on_event(CheckpointEvent{100, "run/checkpoints/step_00000100", 4.0});
  }
  const std::string text = out.str();
  const std::size_t bar = text.find("[############............]  50%");
  ASSERT_NE(bar, std::string::npos) << text;
  // The line is erased before anything else is printed, and at the end.
  const std::size_t erased = text.find("\r\x1b[K", bar);
  ASSERT_NE(erased, std::string::npos);
  EXPECT_LT(erased, text.find("checkpoint run/"));
  EXPECT_EQ(text.back(), '\n');
}

TEST(Console, ALostOutputIsAnError) {
  std::ostringstream out;
  Console console(out, false);
  out.setstate(std::ios::badbit);
  EXPECT_THROW(console.on_event(start_event()), Error);
}

TEST(Console, Numbers) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(-1234567), "-1,234,567");
  EXPECT_EQ(duration(0.4), "0 s");
  EXPECT_EQ(duration(59.6), "1 min 00 s");
  EXPECT_EQ(duration(11220), "3 h 07 min");
}

}  // namespace
}  // namespace llmc::cli
