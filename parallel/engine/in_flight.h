// Steps that the host has enqueued and whose result it has not read: at most two, so that an error is thrown two calls
// later at the latest, and the host stays close to the devices.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/engine/engine_parts.h"

namespace lockstep {

/// Result of a step, which StepLoss reads.
struct StepOutcome {
    std::atomic<bool> done = false;  ///< the other members are set, for any thread
    bool refused = false;
    bool skipped = false;
    double value = 0;
    std::optional<double> grad_norm;
    std::string reason;  ///< reason of a refusal
    std::int64_t step = 0;
    std::shared_ptr<MeasuredStep> measured;  ///< for adaptive rates and scaler; null: none
};

/// Locations of a step's numbers on the first device; null by default.
struct StepNumbers {
    const void* loss = nullptr;
    DType loss_dtype = DType::f32;
    const void* norm = nullptr;           ///< norm of the gradients (f64)
    const StatusWord* outcome = nullptr;  ///< null: the agreed word
    const MeasuredSquares* squares = nullptr;
    std::int64_t rows = 0;  ///< rows of the batch, for the measurements
    int pieces = 0;         ///< number of shards of the batch, for the measurements
};

/// Status reports of the devices for one program, read back to pinned memory after it.
class InFlight {
public:
    static constexpr int slots = 3;  ///< two in flight, one being filled

    explicit InFlight(EngineParts& parts);
    /// Waits until at most two programs are in flight, counting the next one; throws the errors of finished ones.
    /// Returns the number of the slot for the next program.
    int begin();
    /// Enqueues the read-back after the program.
    void end(int slot, const StepNumbers& numbers, std::shared_ptr<StepOutcome> outcome);
    /// Waits for all programs in flight and reads their reports.
    void drain();
    /// Whether the program of `outcome` is complete.
    bool is_done(const StepOutcome& outcome) const;
    /// Staging memory of a slot, for inputs in pageable memory; at least `bytes`.
    char* staging(int slot, std::size_t bytes);

private:
    struct Report {
        StatusWord status;
        alignas(double) std::array<std::byte, sizeof(double)> loss{};
        double norm = 0;
        MeasuredSquares squares;
    };
    struct Slot {
        explicit Slot(Device device) : done(device), report(Buffer::allocate_pinned(sizeof(Report))) {}
        Event done;
        std::shared_ptr<Buffer> report;
        std::shared_ptr<Buffer> staging;
        std::shared_ptr<StepOutcome> loss;
        bool busy = false;
        StepNumbers numbers;
    };
    void look_at(Slot& slot);
    static void tell(MeasuredStep& step, const Slot& slot, bool skipped);
    [[noreturn]] void refuse(const StatusWord& status);
    std::string describe(const StatusWord& status) const;

    EngineParts& parts_;
    std::vector<Slot> slots_;
    int next_ = 0;
};

/// The end of an error's message if a part of the step has been committed.
inline constexpr const char* committed_in_part =
    "; a part of the step was committed; load a checkpoint before you continue";

}  // namespace lockstep
