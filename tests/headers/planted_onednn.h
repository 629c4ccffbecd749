// Must be refused by the header test: a public header may not drag in a backend's header.
#pragma once

#include <dnnl.hpp>
