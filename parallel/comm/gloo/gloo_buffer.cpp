#include "lockstep/parallel/comm/gloo/gloo_buffer.h"

#include <algorithm>

namespace lockstep {

bool GlooBuffer::waitRecv(int* rank, std::chrono::milliseconds) {
    wait(recvCompletions_, recvCv_, receives_from_);
    if (rank != nullptr) *rank = receives_from_;
    return true;
}

bool GlooBuffer::waitSend(int* rank, std::chrono::milliseconds) {
    wait(sendCompletions_, sendCv_, sends_to_);
    if (rank != nullptr) *rank = sends_to_;
    return true;
}

void GlooBuffer::send(int to, std::uint64_t slot, std::size_t offset, std::size_t bytes) {
    sends_to_ = to;
    UnboundBuffer::send(to, slot, offset, bytes);
}

void GlooBuffer::recv(int from, std::uint64_t slot, std::size_t offset, std::size_t bytes) {
    receives_from_ = from;
    UnboundBuffer::recv(from, slot, offset, bytes);
}

void GlooBuffer::recv(std::vector<int>, std::uint64_t, std::size_t, std::size_t) {
    throw std::logic_error("receiving from any rank is not supported");
}

bool GlooBuffer::received() {
    const std::lock_guard lock(m_);
    return recvCompletions_ > 0;
}

bool GlooBuffer::sent() {
    const std::lock_guard lock(m_);
    return sendCompletions_ > 0;
}

bool GlooBuffer::take_received() {
    const std::lock_guard lock(m_);
    if (recvCompletions_ == 0) return false;
    --recvCompletions_;
    return true;
}

bool GlooBuffer::failed() {
    const std::lock_guard lock(m_);
    return ex_ != nullptr;
}

void GlooBuffer::wait(int& completions, std::condition_variable& changed, int peer) {
    using std::chrono::milliseconds;
    for (milliseconds slice{1};; slice = std::min(2 * slice, milliseconds(8))) {
        {
            std::unique_lock lock(m_);
            const bool told = changed.wait_for(lock, slice, [&] {
                if (completions == 0) throwIfException();
                return completions > 0;
            });
            if (told) {
                --completions;
                return;
            }
        }
        watch_.keep_waiting(peer);
    }
}

}  // namespace lockstep
