// The depth counter of the evaluator.
#pragma once

#include "text/jinja/evaluator.h"

namespace sluice::text::jinja {

class Evaluator::Nest {
 public:
  explicit Nest(Evaluator& evaluator) : evaluator_(evaluator) {
    // Checked before counting: a constructor that throws is not followed by its destructor.
    if (evaluator_.depth_ >= evaluator_.heap_.limits().depth) {
      fail(ErrorCode::kLimit, "the template nests deeper than {} levels", evaluator_.heap_.limits().depth);
    }
    ++evaluator_.depth_;
  }
  ~Nest() { --evaluator_.depth_; }
  Nest(const Nest&) = delete;
  Nest& operator=(const Nest&) = delete;

 private:
  Evaluator& evaluator_;
};

}  // namespace sluice::text::jinja
