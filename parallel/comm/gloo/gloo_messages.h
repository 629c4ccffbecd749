// Messages between two ranks over Gloo's connections.
//
// Gloo ends the process if more bytes arrive than expected, cannot cancel a receive, and cannot report which message is
// next. So each rank has a few pending receives of fixed size for each other rank. They receive frames: a header, and
// the bytes themselves if they fit. Arrived frames are matched here with pending receives. Larger messages follow their
// frame in a separate slot, directly from memory to memory, when a receiver exists.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <vector>

#include "lockstep/parallel/comm/gloo/gloo_mesh.h"

namespace lockstep {

/// Must be used by one thread at a time.
class GlooMessages : public std::enable_shared_from_this<GlooMessages> {
public:
    GlooMessages(const GroupInfo& info, GlooWatch& watch);

    /// Identifies messages. Messages of the user and parts of collectives have separate labels.
    struct Label {
        std::uint32_t tag;
        std::uint32_t collective;  ///< 1 or 0
        bool operator==(const Label&) const = default;
    };
    std::unique_ptr<Message> send(const void* data, std::size_t bytes, int to, Label label);
    std::unique_ptr<Message> receive(void* data, std::size_t bytes, int from, Label label);

    /// As Transport::announced, among the messages of the user.
    int announced(std::uint32_t tag);

    GlooMesh& mesh() { return mesh_; }
    /// Processes arrived frames.
    void poll();
    /// Whether messages from and to `peer` are no longer possible.
    bool lost(int peer);
    /// Throws if messages from or to `peer`, or any other rank (Transport::any_source), are no longer possible.
    void require(int peer);
    /// Why the group cannot continue, as far as connections show it: one is closed whose rank has not taken leave.
    /// Empty if none is. From any thread.
    std::string failure();
    /// Waits until the others have read all that this rank has sent, because closing a connection may discard its
    /// buffered data.
    void take_leave(Deadline deadline);

private:
    class Sending;
    class Receiving;

    struct Header {
        std::uint64_t bytes;
        std::uint64_t sequence;  ///< number of the sender's messages to this receiver
        Label label;
    };
    static constexpr std::size_t frame_bytes = 4096, max_inside = frame_bytes - sizeof(Header);
    using FrameMemory = std::array<std::byte, frame_bytes>;

    struct Frame {
        std::unique_ptr<FrameMemory> memory;
        std::unique_ptr<GlooBuffer> buffer;
    };
    struct Arrived {
        int source;
        Header header;
        std::vector<std::byte> inside;
    };
    struct Peer {
        std::vector<Frame> open;  ///< receives, in the order in which they will be filled, cyclically
        std::size_t next = 0;
        std::atomic<bool> closed{false};
        std::uint64_t sent = 0;
        std::byte nothing{};
        std::unique_ptr<GlooBuffer> leave_given, leave_taken;
    };

    Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
    Frame make_frame() const;
    void arrived(int source, const FrameMemory& frame);
    static std::size_t inside(const Header& header) { return header.bytes <= max_inside ? header.bytes : 0; }

    const int rank_;
    std::list<Frame> left_behind_;  ///< frames of aborted messages, which Gloo still sends
    GlooMesh mesh_;                 ///< destroyed before the memory that it sends from
    std::vector<Peer> peers_;
    std::list<Receiving*> waiting_;
    std::deque<Arrived> unexpected_;
};

}  // namespace lockstep
