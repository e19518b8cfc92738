#include "ops/cuda/matmul_choices.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>

#include "llmc/core/file.h"
#include "support/captured_log.h"
#include "support/temp_folder.h"

namespace llmc::cuda {
namespace {

using testing::CapturedLog;
using testing::TempFolder;

MatmulChoice choice(unsigned char first, double microseconds) {
  MatmulChoice choice{.algorithm = {}, .microseconds = microseconds};
  for (std::size_t i = 0; i < choice.algorithm.size(); ++i) {
    choice.algorithm[i] = static_cast<unsigned char>(first + 37 * i);
  }
  return choice;
}

MatmulChoices two_choices() {
  MatmulChoices choices("A GPU", 130100);
  choices.set("bf16=bf16*bf16 NT m=1 n=2 k=3", choice(250, 12.345678901234567));
  choices.set("f32=f32*f32 TN m=4 n=5 k=6", choice(0, 0));
  return choices;
}

TEST(MatmulChoices, TextCarriesEveryBit) {
  const MatmulChoices from = two_choices();
  MatmulChoices to("A GPU", 130100);
  to.set("f32=f32*f32 TN m=4 n=5 k=6", choice(9, 1));  // gives way
  const MatmulChoices::Merged merged = to.merge(from.text());
  EXPECT_EQ(merged.taken, 2u);
  EXPECT_EQ(merged.foreign, 0u);
  EXPECT_EQ(merged.damaged, 0u);
  EXPECT_EQ(to.text(), from.text());
  const MatmulChoice* found = to.find("bf16=bf16*bf16 NT m=1 n=2 k=3");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->algorithm, choice(250, 0).algorithm);
  EXPECT_EQ(found->microseconds, 12.345678901234567);
  EXPECT_EQ(to.find("bf16=bf16*bf16 NT m=1 n=2 k=4"), nullptr);
}

TEST(MatmulChoices, LeavesThoseOfOtherGpusAndLibraries) {
  const std::string text = two_choices().text();
  for (MatmulChoices other : {MatmulChoices("B GPU", 130100), MatmulChoices("A GPU", 130101)}) {
    const MatmulChoices::Merged merged = other.merge(text);
    EXPECT_EQ(merged.taken, 0u);
    EXPECT_EQ(merged.foreign, 2u);
    EXPECT_EQ(other.text(), "");
  }
}

TEST(MatmulChoices, NoticesDamageAnywhere) {
  const std::string good = two_choices().text();
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string text = good;
    text[i] = static_cast<char>(text[i] ^ 1);
    MatmulChoices choices("A GPU", 130100);
    const MatmulChoices::Merged merged = choices.merge(text);
    EXPECT_LE(merged.taken, 1u) << i;
    EXPECT_GE(merged.damaged, 1u) << i;
  }
  std::mt19937 random(1);
  for (const std::size_t size : {1, 10, 1000, 5000}) {
    std::string text(size, '\0');
    for (char& c : text) c = static_cast<char>(random());
    MatmulChoices choices("A GPU", 130100);
    const MatmulChoices::Merged merged = choices.merge(text);
    EXPECT_EQ(merged.taken + merged.foreign, 0u);
    EXPECT_GE(merged.damaged, 1u);
  }
}

TEST(MatmulChoices, AFileKeepsTheTimedOnesOfAllGpus) {
  const TempFolder folder;
  const auto path = folder / "cache" / "choices.txt";
  two_choices().save(path);
  MatmulChoices other("B GPU", 130100);
  other.set("bf16=bf16*bf16 NT m=1 n=2 k=3", choice(3, 4));
  other.save(path);
  MatmulChoices first("A GPU", 130100), second("B GPU", 130100);
  first.load(path);
  second.load(path);
  EXPECT_NE(first.find("bf16=bf16*bf16 NT m=1 n=2 k=3"), nullptr);
  EXPECT_EQ(first.find("f32=f32*f32 TN m=4 n=5 k=6"), nullptr);  // not timed
  EXPECT_EQ(second.text(), other.text());
}

TEST(MatmulChoices, ADamagedFileCostsAWarning) {
  const TempFolder folder;
  const auto path = folder / "choices.txt";
  CapturedLog log;
  MatmulChoices choices("A GPU", 130100);
  choices.load(path);  // not there yet
  EXPECT_EQ(log.text(), "");
  two_choices().save(path);
  const std::string text = read_text(path);
  write_text(path, text.substr(0, text.size() / 2) + "\n" + text);
  choices.load(path);
  EXPECT_NE(log.text().find("damaged lines: 1"), std::string::npos) << log.text();
  EXPECT_NE(choices.find("bf16=bf16*bf16 NT m=1 n=2 k=3"), nullptr);
  choices.save(path);  // leaves the damaged line out
  EXPECT_EQ(read_text(path), text);
  CapturedLog of_folder;
  choices.load(folder.path());
  EXPECT_NE(of_folder.text().find("are not used"), std::string::npos) << of_folder.text();
}

}  // namespace
}  // namespace llmc::cuda
