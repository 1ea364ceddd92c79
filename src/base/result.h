// Result and Error are part of the public interface; everything inside includes them from here.
#pragma once

#include "sluice/result.h"  // IWYU pragma: export
