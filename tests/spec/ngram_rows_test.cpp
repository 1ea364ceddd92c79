// Golden rows of the released model's hash (model.md 10.1).
#include <gtest/gtest.h>

#include <array>

#include "spec/ngram_hash.h"
#include "support/released_config.h"

namespace sluice::spec {
namespace {

constexpr std::array<std::array<std::int64_t, 16>, 6> kRowsA = {{
    {13981229, 30076798, 49239434, 61315716, 98540601, 111186732, 120378863, 146384625, 173637879, 184336749,
     217808755, 222173721, 249579227, 277180543, 299757935, 312970430},
    {4908448, 36872991, 46611251, 64451521, 83649409, 110850044, 122402102, 159207155, 170314019, 195445770,
     214314282, 239389039, 254862662, 271565595, 284073139, 308659387},
    {4582007, 37691206, 44255274, 65455601, 89351473, 103985474, 135938409, 145212418, 163775156, 199680439,
     200044921, 228961047, 240669798, 272736434, 296838250, 317942745},
    {17028438, 28209680, 53967334, 66215064, 85458255, 111908343, 131616820, 144623762, 166642648, 189439214,
     209569116, 233987584, 245802513, 277657279, 294951074, 301485535},
    {5098318, 39222209, 50781683, 68002168, 98868614, 103450215, 121222150, 153263833, 169632415, 198132079,
     216839746, 239821624, 245407463, 272073083, 281201541, 308643050},
    {510813, 24677820, 50498865, 70834323, 89294582, 102912024, 124085691, 153712591, 165033273, 184094315,
     217467289, 233619392, 252430401, 272125264, 285553350, 314166548},
}};

constexpr std::array<std::array<std::int64_t, 16>, 4> kRowsB = {{
    {6783314, 25893696, 59239020, 66167313, 81761837, 114435313, 124203423, 151975917, 166590818, 187833462,
     212087477, 223519364, 246888052, 271470774, 293268240, 304278145},
    {3091325, 31587036, 40332420, 73613226, 81102717, 104558745, 120642232, 150432651, 167505323, 188064371,
     216804117, 227128662, 247282254, 268376232, 295616693, 313385342},
    {8043531, 20619273, 50663077, 72930985, 84495297, 115818073, 123553293, 148602499, 173722990, 186107180,
     200103682, 222687683, 241787806, 262117263, 282500374, 306464175},
    {4582007, 37691206, 44255274, 65455601, 89351473, 103985474, 135938409, 145212418, 179717784, 189775746,
     203318555, 232744068, 241529211, 270672239, 293799519, 310031334},
}};

void expect_rows(std::span<const std::int32_t> sequence,
                 std::span<const std::array<std::int64_t, 16>> needed) {
  const auto config = parse_config(test::released_config(), "config.json");
  ASSERT_TRUE(config.ok());
  const auto hash = derive_ngram_hash(*config, 0);
  ASSERT_TRUE(hash.ok());
  ASSERT_EQ(sequence.size(), needed.size());
  for (std::size_t i = 0; i < sequence.size(); ++i) {
    std::array<std::int64_t, 16> rows{};
    hash->rows_of(sequence.first(i + 1), rows);
    EXPECT_EQ(rows, needed[i]) << "whole history, position " << i;
    // Only the last three tokens count, and fewer at the start.
    const std::size_t from = i < 2 ? 0 : i - 2;
    hash->rows_of(sequence.subspan(from, i + 1 - from), rows);
    EXPECT_EQ(rows, needed[i]) << "last three tokens, position " << i;
  }
}

TEST(NgramRows, SequenceA) {
  const std::array<std::int32_t, 6> sequence = {248045, 846, 198, 9419, 248046, 198};
  expect_rows(sequence, kRowsA);
}

TEST(NgramRows, SequenceBWithEosInside) {
  const std::array<std::int32_t, 4> sequence = {9419, 248044, 846, 198};
  expect_rows(sequence, kRowsB);
}

}  // namespace
}  // namespace sluice::spec
