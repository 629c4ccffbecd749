// A trace: the records of `forward`, loss and backward for one shard, collected instead of executed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/runtime/record.h"

namespace lockstep {

/// Settings that, in addition to the records, determine how they are computed: part of the arithmetic.
struct TraceSettings {
    Device prototype;  ///< device whose kernels and layouts are used (all devices of a program are of one kind)
    int threads = 1;   ///< threads of a CPU device for one shard
    bool deterministic = false;
    int shards = 1;
    ConvAlgorithm convolution = default_conv_algorithm();
    bool allow_tf32 = false;
    std::optional<DType> autocast = {};  ///< for forward and loss, unless the caller is in an Autocast scope
};

/// Collects the records of this thread while a TraceScope is active.
class Trace {
public:
    /// `batch_rows`: rows of all shards; nullopt if the trace is of a microbatch.
    explicit Trace(const TraceSettings& settings, std::optional<std::int64_t> batch_rows = std::nullopt);

    /// Unique among the traces of the process, from 1.
    std::uint64_t number() const { return number_; }
    const TraceSettings& settings() const { return settings_; }
    Device prototype() const { return settings_.prototype; }

    /// A placeholder tensor without value for an input of the program.
    Tensor input(const TensorMeta& meta, bool requires_grad = false);
    std::shared_ptr<Buffer> buffer(std::size_t bytes);
    void append(Record record);
    /// The trace that collects this thread's records, or null.
    static Trace* current();

    std::vector<Record>& records() { return records_; }
    const std::vector<Record>& records() const { return records_; }
    /// Records that change lasting state; they run after the shards have agreed that the step is good.
    std::vector<Record>& commits() { return commits_; }
    int buffers() const { return buffers_; }
    std::uint32_t next_ordinal() { return ordinals_++; }
    /// Rows of all shards of the batch. From then on, the trace is valid for this number only.
    std::optional<std::int64_t> use_batch_rows() {
        uses_batch_rows_ = true;
        return batch_rows_;
    }
    bool uses_batch_rows() const { return uses_batch_rows_; }
    /// Whether the value of `tensor` depends on the shard: on inputs, or on random numbers.
    bool differs_by_shard(const Tensor& tensor) const;
    /// Overrides the rule of differs_by_shard: a random operation may draw the same numbers on all shards, and a shard
    /// may take its rows from an input that is the same on all.
    void set_differs_by_shard(const Tensor& tensor, bool by_shard);
    /// Declares that forward computed gradients of this leaf (grad()), which therefore need not be a parameter.
    void set_differentiated(const Tensor& leaf) { differentiated_.push_back(leaf); }
    bool is_differentiated(const Tensor& leaf) const {
        return std::any_of(differentiated_.begin(), differentiated_.end(),
                           [&](const Tensor& known) { return known.impl() == leaf.impl(); });
    }

private:
    bool differs(const Buffer* buffer) const;
    std::uint64_t number_;
    TraceSettings settings_;
    std::optional<std::int64_t> batch_rows_;
    bool uses_batch_rows_ = false;
    std::vector<Record> records_;
    std::vector<Record> commits_;
    int buffers_ = 0;
    std::uint32_t ordinals_ = 0;
    std::vector<Tensor> differentiated_;
    std::vector<bool> by_shard_;  ///< by number of a buffer: its value depends on the shard
};

/// Appends the operations of this thread to a trace, as long as it exists.
class TraceScope {
public:
    explicit TraceScope(Trace& trace);
    /// Suspends tracing: work on tensors outside `forward` is executed at once.
    explicit TraceScope(std::nullptr_t);
    ~TraceScope();
    TraceScope(const TraceScope&) = delete;
    TraceScope& operator=(const TraceScope&) = delete;

private:
    Trace* previous_;
};

}  // namespace lockstep
