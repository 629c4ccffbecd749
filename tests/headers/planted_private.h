// test_layering must reject this: a public header may not include a private one, and headers in subfolders are private.
#pragma once

#include "lockstep/tests/headers/private.h"
