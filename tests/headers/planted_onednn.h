// Must be refused by test_layering: a public header may not include a header of a backend.
#pragma once

#include <dnnl.hpp>
