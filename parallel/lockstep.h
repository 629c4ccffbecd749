// The umbrella header: everything a program needs.
#pragma once

#include "lockstep/runtime/error.h"
