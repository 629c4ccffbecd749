// Messages between two ranks over Gloo's connections.
//
// Gloo ends the process when more bytes arrive than were to be received, cannot take back a receive, and cannot ask
// which message comes next. So each rank has a few receives of fixed size open towards each other rank, for frames: a
// header, and the bytes themselves where they fit. What comes in is matched here with what is waited for. Larger
// messages follow their frame in a slot of their own, straight from memory to memory, once a receiver is there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <vector>

#include "lockstep/parallel/comm/gloo/gloo_mesh.h"

namespace lockstep {

/// Not for several threads at once.
class GlooMessages : public std::enable_shared_from_this<GlooMessages> {
public:
    GlooMessages(const GroupInfo& info, GlooWatch& watch);

    /// Who sends what: messages of the user and parts of collectives are kept apart.
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
    /// Takes in what has come.
    void poll();
    /// Whether nothing will come from `peer` any more, nor reach it.
    bool lost(int peer);
    /// Throws when nothing will come from, or reach, `peer`, or any other rank at all (Transport::any_source).
    void require(int peer);
    /// Waits until the others have read all that this rank has sent: what a closed connection still holds may be lost.
    void take_leave(Deadline deadline);

private:
    class Sending;
    class Receiving;

    struct Header {
        std::uint64_t bytes;
        std::uint64_t sequence;  ///< of the sender towards this receiver
        Label label;
    };
    static constexpr std::size_t frame_bytes = 4096, most_inside = frame_bytes - sizeof(Header);
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
        std::vector<Frame> open;  ///< receives, in the order in which they will be filled, round and round
        std::size_t next = 0;
        bool closed = false;
        std::uint64_t sent = 0;
        std::byte nothing{};
        std::unique_ptr<GlooBuffer> leave_given, leave_taken;
    };

    Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
    Frame make_frame() const;
    void arrived(int source, const FrameMemory& frame);
    static std::size_t inside(const Header& header) { return header.bytes <= most_inside ? header.bytes : 0; }

    const int rank_;
    std::list<Frame> left_behind_;  ///< of messages that were given up; Gloo still sends them
    GlooMesh mesh_;                 ///< goes before the memory that it sends
    std::vector<Peer> peers_;
    std::list<Receiving*> waiting_;
    std::deque<Arrived> unexpected_;
};

}  // namespace lockstep
