// The umbrella header under the name that it has after installation. A file and not a link, because clang-format
// replaces links by copies.
#pragma once

#include "lockstep/parallel/lockstep.h"
