// One function for each kind of golden file. Each checks what it reads before it calls an operation.
#pragma once

#include "backend/golden/golden_case.h"

namespace sluice::backend::golden {

// rows.cpp
void bf16_matvec(GoldenCase& c);
void qmv_small(GoldenCase& c);
void qmv_silu(GoldenCase& c);
void silu_rows(GoldenCase& c);
void gather_rows(GoldenCase& c);
void scatter_add_rows(GoldenCase& c);
void shared_add_rows(GoldenCase& c);

// wide.cpp
void replicate(GoldenCase& c);
void group_norm(GoldenCase& c);
void norm_prep(GoldenCase& c);
void hc_mix(GoldenCase& c);
void inject(GoldenCase& c);
void mtp_fold(GoldenCase& c);
void ple_gate(GoldenCase& c);
void ple_conv(GoldenCase& c);
void delta_gate_norm(GoldenCase& c);

// experts.cpp
void router(GoldenCase& c);
void low_bit_matmul(GoldenCase& c);
void experts(GoldenCase& c);

// sparse.cpp
void index(GoldenCase& c);
void attention_q8(GoldenCase& c);
void softmax_selected(GoldenCase& c);

}  // namespace sluice::backend::golden
