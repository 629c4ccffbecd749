// Process groups over TCP by Gloo. All-reduce is Gloo's. The other collectives are made of messages, because Gloo's do
// not support parts of different or zero size (gather, scatter, reduce_scatter), end the process if ranks disagree on
// sizes, or wait past the deadline.
#include <fmt/format.h>
#include <gloo/allreduce.h>

#include <algorithm>
#include <limits>

#include "lockstep/parallel/comm/gloo/gloo_messages.h"
#include "lockstep/parallel/comm/group/message_collectives.h"
#include "lockstep/parallel/comm/group/optional_backends.h"
#include "lockstep/parallel/comm/group/reduce_elements.h"
#include "lockstep/parallel/comm/reduce_op.h"

namespace lockstep {

namespace {

class GlooTransport final : public MessageCollectives, private GlooWatch {
public:
    explicit GlooTransport(const GroupInfo& info)
        : MessageCollectives(info.rank, info.size, 0, info.verdict),
          messages_(std::make_shared<GlooMessages>(info, watch())) {}

    ~GlooTransport() override {
        try {
            messages_->take_leave(RunClock::now() + patience);
        } catch (const std::exception&) {  // the mesh is closed
        }
        mesh().close("the transport was destroyed");
    }

    std::string_view backend() const override { return "gloo"; }

    std::unique_ptr<Message> send(const void* data, std::size_t bytes, int to, std::uint32_t tag) override {
        return messages_->send(data, bytes, to, {tag, 0});
    }
    std::unique_ptr<Message> receive(void* data, std::size_t bytes, int from, std::uint32_t tag) override {
        return messages_->receive(data, bytes, from, {tag, 0});
    }

    int announced(std::uint32_t tag) override { return messages_->announced(tag); }

    void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, Deadline deadline) override {
        const std::uint32_t call = next_call();
        if (count == 0) return;
        deadline_ = deadline;
        mesh().guarded([&] {
            gloo::AllreduceOptions options(mesh().context());
            switch (size_of(dtype)) {
                case 1: options.setOutput(static_cast<std::uint8_t*>(data), count); break;
                case 2: options.setOutput(static_cast<std::uint16_t*>(data), count); break;
                case 4: options.setOutput(static_cast<std::uint32_t*>(data), count); break;
                default: options.setOutput(static_cast<std::uint64_t*>(data), count); break;
            }
            options.setReduceFunction([dtype, op](void* out, const void* a, const void* b, std::size_t elements) {
                reduce_elements(dtype, op, out, a, b, elements);
            });
            options.setTag(tag_of(call, count, dtype, op));
            gloo::allreduce(options);
        });
    }

    void abort(const std::string& reason) noexcept override { mesh().close(reason); }
    std::string failure() const override { return messages_->failure(); }

private:
    GlooWatch& watch() { return *this; }
    GlooMesh& mesh() { return messages_->mesh(); }

    std::unique_ptr<Message> send_part(const void* data, std::size_t bytes, int to, std::uint32_t call) override {
        return messages_->send(data, bytes, to, {call, 1});
    }
    std::unique_ptr<Message> receive_part(void* data, std::size_t bytes, int from, std::uint32_t call) override {
        return messages_->receive(data, bytes, from, {call, 1});
    }
    void fail(const std::string& reason) override { mesh().fail(reason); }

    /// Differs if ranks disagree on the call. Then their messages do not match and the deadline passes; with equal tags
    /// Gloo would end the process because of a message that is too long.
    static std::uint32_t tag_of(std::uint32_t call, std::size_t count, DType dtype, ReduceOp op) {
        std::uint64_t hash = call;
        for (const std::uint64_t part :
             {std::uint64_t{count}, static_cast<std::uint64_t>(dtype), static_cast<std::uint64_t>(op)})
            hash = (hash ^ part) * 0x9e3779b97f4a7c15u + (hash >> 29);
        return static_cast<std::uint32_t>(hash >> 32);
    }

    void keep_waiting(int peer) override {
        mesh().require_alive();
        messages_->poll();
        messages_->require(peer);
        if (meanwhile) meanwhile();
        if (RunClock::now() >= deadline_) fail(late(fmt::format("rank {}", peer)));
    }

    Deadline deadline_{};
    std::shared_ptr<GlooMessages> messages_;
};

}  // namespace

void lockstep_gloo_backend(TransportBackend& backend) {
    backend.make = [](const GroupInfo& info) -> std::unique_ptr<Transport> {
        return std::make_unique<GlooTransport>(info);
    };
}

}  // namespace lockstep
