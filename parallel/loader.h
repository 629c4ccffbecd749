// The loader: batches in one global order, read by worker threads into pinned memory and copied in advance to the
// devices of their shards. The order depends only on seed and epoch, or on a sampler, never on devices or shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/parallel/data/dataset.h"
#include "lockstep/parallel/data/sampler.h"
#include "lockstep/parallel/data/sharded_tensor.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/runtime/moved_from.h"

namespace lockstep {

/// Options of a Loader.
struct LoaderOptions {
    std::int64_t batch_size = 1;  ///< rows of a batch over all devices
    bool shuffle = false;         ///< whether every epoch has a new random order
    std::uint64_t seed = 0;       ///< random seed for shuffling and for RowContext
    bool drop_last = false;       ///< whether a shorter last batch is dropped
    int workers = 1;              ///< number of reading threads; 0: rows are read on demand, in the caller
    int prefetch = 2;             ///< number of batches to read ahead
    /// Selects and orders the rows of an epoch; cannot be combined with `shuffle`. Called once per epoch on every rank,
    /// and must return the same rows on each. A batch sampler replaces `batch_size` and `drop_last`.
    AnySampler sampler = {};
};

/// The numbers 0 to count - 1 in the order of that epoch: a Fisher-Yates shuffle drawn from Philox. Throws
/// InvalidArgument for more than 2^32 - 1.
std::vector<std::int64_t> shuffled_order(std::int64_t count, std::uint64_t seed, std::uint64_t epoch);

namespace detail {

/// Type-independent part of a loader. All devices are driven from the calling thread, one at a time (InvalidArgument
/// otherwise); workers only read.
class BatchLoader {
public:
    BatchLoader(const Engine& engine, std::shared_ptr<const RowSource> source, const LoaderOptions& options);
    ~BatchLoader();
    BatchLoader(const BatchLoader&) = delete;
    BatchLoader& operator=(const BatchLoader&) = delete;

    std::int64_t batches() const;
    std::int64_t rows() const;
    const LoaderOptions& options() const;
    /// Begins an epoch and ends the previous one. Returns its number for the other calls.
    std::uint64_t begin(std::uint64_t epoch, std::int64_t first_batch);
    /// The next batch, one tensor per field; empty at the end. Rethrows reading errors.
    std::vector<ShardedTensor> next(std::uint64_t run);
    /// Stops reading ahead for that epoch.
    void end(std::uint64_t run) noexcept;

private:
    struct State;
    std::unique_ptr<State> state_;
};

template <class Model>
const Engine& engine_of(Model& model) {
    if constexpr (requires { model.engine(); })
        return model.engine();
    else
        return model;
}

}  // namespace detail

/// Batches of `Data` for one model.
template <class Data>
class Loader {
    static_assert(RowReader<Data> || Dataset<Data>,
                  "a dataset has size() and get(row) that returns a tuple of tensors");

public:
    /// One sharded tensor per field, ready for `step` and `forward`.
    using Batch = detail::tuple_of<ShardedTensor, detail::field_count<Data>()>;

    /// `model`: a DataParallel or DistributedDataParallel, or its engine; only its shards and their devices are stored.
    /// Throws InvalidArgument for an empty dataset and invalid options; warns if a batch has fewer rows than there are
    /// shards.
    template <class Model>
    Loader(Model& model, Data data, const LoaderOptions& options = {})
        : core_(std::make_shared<detail::BatchLoader>(
              detail::engine_of(model), std::make_shared<detail::RowSourceOf<Data>>(std::move(data)), options)) {}

    /// The batches of one epoch: a single-pass range, for one thread at a time (InvalidArgument otherwise). Rethrows
    /// the errors of the dataset. It may be left early; a new epoch ends the previous one.
    class Epoch {
    public:
        Epoch(std::shared_ptr<detail::BatchLoader> core, std::uint64_t epoch, std::int64_t first_batch)
            : core_(std::move(core)), run_(core_->begin(epoch, first_batch)) {}
        ~Epoch() { core_->end(run_); }
        Epoch(const Epoch&) = delete;
        Epoch& operator=(const Epoch&) = delete;

        /// An input iterator: an increment replaces the batch.
        class Iterator {
        public:
            using iterator_concept = std::input_iterator_tag;
            using value_type = Batch;
            using difference_type = std::ptrdiff_t;
            explicit Iterator(Epoch* epoch = nullptr) : epoch_(epoch) {}
            Batch& operator*() const { return epoch_->batch_; }
            Iterator& operator++() {
                epoch_->advance();
                return *this;
            }
            void operator++(int) { ++*this; }
            bool operator==(std::default_sentinel_t) const { return !epoch_->has_batch_; }

        private:
            Epoch* epoch_;
        };
        Iterator begin() {
            advance();
            return Iterator(this);
        }
        std::default_sentinel_t end() const { return {}; }

    private:
        void advance() {
            std::vector<ShardedTensor> next = core_->next(run_);
            has_batch_ = !next.empty();
            batch_ = Batch();
            if (has_batch_) {
                auto from = next.begin();
                std::apply([&](auto&... field) { ((field = std::move(*from++)), ...); }, batch_);
            }
        }
        std::shared_ptr<detail::BatchLoader> core_;
        std::uint64_t run_;
        Batch batch_;
        bool has_batch_ = false;
    };

    /// Throws InvalidArgument if `first_batch` (the batch to resume at) is not in 0..batches(). Also throws it if the
    /// sampler returns invalid rows, or another number of rows or batches than it declared.
    Epoch epoch(std::uint64_t epoch, std::int64_t first_batch = 0) { return Epoch(core(), epoch, first_batch); }

    /// Batches of an epoch, and rows in them.
    std::int64_t batches() const { return core()->batches(); }
    std::int64_t rows() const { return core()->rows(); }
    /// With a batch sampler, `batch_size` is that of the largest batch.
    const LoaderOptions& options() const { return core()->options(); }

private:
    const std::shared_ptr<detail::BatchLoader>& core() const {
        detail::content_of(core_, "Loader");
        return core_;
    }
    std::shared_ptr<detail::BatchLoader> core_;
};

/// Deduces the type of the dataset.
template <class Model, class Data>
Loader(Model&, Data, const LoaderOptions&) -> Loader<Data>;
template <class Model, class Data>
Loader(Model&, Data) -> Loader<Data>;

}  // namespace lockstep
