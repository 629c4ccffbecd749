// The loader: batches in one global order, read by worker threads into pinned memory and copied ahead of their use to
// the devices of their shards. The order depends on the seed and the epoch alone, or on a sampler, never on devices or
// shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/parallel/data/any_sampler.h"
#include "lockstep/parallel/data/dataset.h"
#include "lockstep/parallel/data/sharded_tensor.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

struct LoaderOptions {
    std::int64_t batch_size = 1;  ///< rows of a batch over all devices
    bool shuffle = false;         ///< another order in every epoch
    std::uint64_t seed = 0;       ///< of the order, and of what a data set draws from a RowContext
    bool drop_last = false;       ///< leaves out a last batch that is shorter
    int workers = 1;              ///< threads that read; 0: rows are read when they are asked for
    int prefetch = 2;             ///< batches that are read ahead
    /// Which rows an epoch has, in which order; not with `shuffle`. It is asked once per epoch, on every rank, and must
    /// answer alike there. One that makes the batches, too, takes the place of `batch_size` and `drop_last`.
    AnySampler sampler = {};
};

/// The numbers 0 to count - 1 in the order of that epoch: a Fisher-Yates shuffle drawn from Philox. Throws
/// InvalidArgument for more than 2^32 - 1.
std::vector<std::int64_t> shuffled_order(std::int64_t count, std::uint64_t seed, std::uint64_t epoch);

namespace detail {

/// What of a loader does not depend on types. All devices are driven from the thread that calls, one at a time
/// (InvalidArgument); workers only read.
class BatchLoader {
public:
    BatchLoader(const Engine& engine, std::shared_ptr<const RowSource> source, const LoaderOptions& options);
    ~BatchLoader();
    BatchLoader(const BatchLoader&) = delete;
    BatchLoader& operator=(const BatchLoader&) = delete;

    std::int64_t batches() const;
    std::int64_t rows() const;
    const LoaderOptions& options() const;
    /// Begins an epoch; the one before it ends. Returns its number for the other calls.
    std::uint64_t begin(std::uint64_t epoch, std::int64_t first_batch);
    /// The next batch, one tensor a field; empty at the end. Rethrows what reading threw.
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
                  "a data set has size() and get(row) that returns a tuple of tensors");

public:
    /// One sharded tensor a field, ready for `step` and `forward`.
    using Batch = detail::tuple_of<ShardedTensor, detail::field_count<Data>()>;

    /// `model`: a DataParallel, or its engine; only its shards and their devices are kept. Throws InvalidArgument for
    /// an empty data set and bad options; warns when a batch has fewer rows than there are shards.
    template <class Model>
    Loader(Model& model, Data data, const LoaderOptions& options = {})
        : core_(std::make_shared<detail::BatchLoader>(
              detail::engine_of(model), std::make_shared<detail::RowSourceOf<Data>>(std::move(data)), options)) {}

    /// The batches of one epoch, to be gone through once, by one thread at a time (InvalidArgument otherwise). Reading
    /// errors come out of it as the data set threw them. Leaving it early is fine; a new epoch ends the one before.
    class Epoch {
    public:
        Epoch(std::shared_ptr<detail::BatchLoader> core, std::uint64_t epoch, std::int64_t first_batch)
            : core_(std::move(core)), run_(core_->begin(epoch, first_batch)) {}
        ~Epoch() { core_->end(run_); }
        Epoch(const Epoch&) = delete;
        Epoch& operator=(const Epoch&) = delete;

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
            bool operator==(std::default_sentinel_t) const { return !epoch_->there_; }

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
            there_ = !next.empty();
            batch_ = Batch();
            if (there_) {
                auto from = next.begin();
                std::apply([&](auto&... field) { ((field = std::move(*from++)), ...); }, batch_);
            }
        }
        std::shared_ptr<detail::BatchLoader> core_;
        std::uint64_t run_;
        Batch batch_;
        bool there_ = false;
    };

    /// Throws InvalidArgument when `first_batch` (where a run is resumed) is not in 0..batches(), and when the sampler
    /// gives rows that the data set has not, or other numbers of rows or batches than it said.
    Epoch epoch(std::uint64_t epoch, std::int64_t first_batch = 0) { return Epoch(core(), epoch, first_batch); }

    /// Batches of an epoch, and rows in them.
    std::int64_t batches() const { return core()->batches(); }
    std::int64_t rows() const { return core()->rows(); }
    /// With a sampler that makes the batches `batch_size` is that of the largest one.
    const LoaderOptions& options() const { return core()->options(); }

private:
    const std::shared_ptr<detail::BatchLoader>& core() const {
        if (!core_) throw InvalidArgument("Loader: used after it was moved from; use the object it was moved to");
        return core_;
    }
    std::shared_ptr<detail::BatchLoader> core_;
};

template <class Model, class Data>
Loader(Model&, Data, const LoaderOptions&) -> Loader<Data>;
template <class Model, class Data>
Loader(Model&, Data) -> Loader<Data>;

}  // namespace lockstep
