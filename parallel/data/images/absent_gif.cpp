// GIF in builds without its library.
#include "lockstep/parallel/data/images/codecs.h"

namespace lockstep::internal {

ImageCodec gif_codec() { return {}; }

}  // namespace lockstep::internal
