// Must be refused by test_layering: a public header may not include a private one, and headers in subfolders are.
#pragma once

#include "lockstep/tests/headers/private.h"
