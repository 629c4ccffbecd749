// JPEG in builds without its library.
#include "lockstep/parallel/data/images/codecs.h"

namespace lockstep::internal {

ImageCodec jpeg_codec() { return {}; }

}  // namespace lockstep::internal
