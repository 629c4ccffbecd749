// Steps that the host has enqueued and not yet looked at: at most two, so that errors are thrown at the latest two
// calls later and the host never runs away.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/parallel/schedule/engine_context.h"

namespace lockstep {

struct StepLoss::State {
    /// Null once the rest is there, for any thread.
    std::atomic<Engine*> engine = nullptr;
    bool refused = false;
    bool skipped = false;
    double value = 0;
    std::optional<double> grad_norm;
    std::string reason;  ///< why it was refused
    std::int64_t step = 0;
};

/// What the devices report of one program: read back to pinned memory behind it.
class InFlight {
public:
    static constexpr int slots = 3;  ///< two in flight, one being filled

    explicit InFlight(EngineContext& context);
    /// Waits until at most two programs are in flight with the one to come; throws what finished ones have to throw.
    /// Returns the number of the slot that the coming program uses.
    int begin();
    /// Enqueues the read-back behind the program.
    void end(int slot, const StepNumbers& numbers, std::shared_ptr<StepLoss::State> state);
    /// Looks at all programs in flight.
    void drain();
    /// Whether the program that `state` is of has come to its end.
    bool is_done(const StepLoss::State& state) const;
    /// Staging memory of a slot, for inputs that lie in pageable memory; at least `bytes`.
    char* staging(int slot, std::size_t bytes);

private:
    struct Report {
        StatusWord status;
        alignas(double) std::array<std::byte, sizeof(double)> loss{};
        double norm = 0;
    };
    struct Slot {
        explicit Slot(Device device) : done(device), report(Buffer::allocate_pinned(sizeof(Report))) {}
        Event done;
        std::shared_ptr<Buffer> report;
        std::shared_ptr<Buffer> staging;
        std::shared_ptr<StepLoss::State> loss;
        bool busy = false;
        StepNumbers numbers;
    };
    void look_at(Slot& slot);
    [[noreturn]] void refuse(const StatusWord& status);
    std::string describe(const StatusWord& status) const;

    EngineContext& context_;
    std::vector<Slot> slots_;
    int next_ = 0;
};

/// Ends the message of an error that could not be kept from the model.
inline constexpr const char* committed_in_part =
    "; a part of the step was committed: load a checkpoint before going on";

/// Waits for every stream of the engine and forgets all reports. Rethrows the first failure of a stream.
void rest_all_devices(EngineContext& context);

}  // namespace lockstep
