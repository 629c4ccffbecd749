// test_layering must reject this: a public header may not include a header of a backend.
#pragma once

#include <dnnl.hpp>
