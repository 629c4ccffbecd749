#include "lockstep/parallel/comm/launch/pipe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "lockstep/runtime/error.h"

namespace lockstep {

void refuse_launch(const char* what) {
    throw Error(fmt::format("launch: {}: {}; are there too many processes or open files?", what, text_of(errno)));
}

Descriptor above_standard_streams(const Descriptor& low) {
    Descriptor high(fcntl(low.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    if (!high) refuse_launch("no descriptor");
    return high;
}

std::pair<Descriptor, Descriptor> make_pipe(PipeEnds at_once) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) refuse_launch("no pipe");
    const Descriptor low_reader(ends[0]), low_writer(ends[1]);
    Descriptor reader = above_standard_streams(low_reader), writer = above_standard_streams(low_writer);
    fcntl(reader.get(), F_SETFL, O_NONBLOCK);
    if (at_once == PipeEnds::both_at_once) fcntl(writer.get(), F_SETFL, O_NONBLOCK);
    return {std::move(reader), std::move(writer)};
}

}  // namespace lockstep
