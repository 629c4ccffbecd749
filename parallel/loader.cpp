#include "lockstep/parallel/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "lockstep/parallel/data/internal/batch_reader.h"
#include "lockstep/parallel/data/internal/torch_generator.h"
#include "lockstep/parallel/data/subset.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/cpu_topology.h"
#include "lockstep/runtime/internal/operands.h"
#include "lockstep/runtime/internal/process.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/one_thread.h"
#include "lockstep/runtime/random.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep {

std::vector<std::int64_t> shuffled_order(std::int64_t count, std::uint64_t seed, std::uint64_t epoch) {
    if (count < 0 || count > 0xffffffff)
        throw InvalidArgument(fmt::format("shuffled_order: {} rows; expected 0 to 2^32 - 1", count));
    constexpr std::uint32_t ordinal = 0x6f726465;  // distinct from the ordinals of masks, which count from 0
    StepCounters key;
    key.seed = seed;
    key.step = epoch;
    std::vector<std::int64_t> order = rows_in_order("shuffled_order", count);
    for (std::size_t left = order.size(); left > 1; --left) {
        // 64 random bits scaled to `left`: each probability is off by less than 2^-64.
        const auto bits = philox(key, ordinal, left);
        const std::uint64_t low = (std::uint64_t{bits[1]} * left) >> 32;
        const std::uint64_t index = (std::uint64_t{bits[0]} * left + low) >> 32;
        std::swap(order[left - 1], order[index]);
    }
    return order;
}

namespace detail {

/// An epoch's rows in order; batch b has the rows from begins[b] to begins[b + 1].
struct EpochOrder {
    std::vector<std::int64_t> rows;
    std::vector<std::int64_t> begins;
};

namespace {

constexpr std::size_t field_alignment = 64;

LoaderOptions checked(LoaderOptions options) {
    if (options.sampler && options.shuffle)
        throw InvalidArgument("Loader: the sampler option is mutually exclusive with shuffle");
    if (options.sampler.is_batching()) {
        if (options.batch_size != 1 || options.drop_last)
            throw InvalidArgument(
                "Loader: a sampler that makes batches is mutually exclusive with batch_size and drop_last");
        options.batch_size = options.sampler.batch_size();
    }
    if (options.batch_size < 1)
        throw InvalidArgument(fmt::format("Loader: batch size {}; expected at least 1", options.batch_size));
    if (options.workers < 0 || options.workers > 1024)
        throw InvalidArgument(fmt::format("Loader: {} workers; expected 0 to 1024", options.workers));
    if (options.prefetch < 1 || options.prefetch > 1024)
        throw InvalidArgument(fmt::format("Loader: prefetch {}; expected 1 to 1024 batches", options.prefetch));
    return options;
}

/// Throws InvalidArgument if `what`, reported by the user's object, is negative, or more than this machine can hold
/// with `bytes` for each. Must be called before any allocation.
void require_size(const char* what, std::int64_t size, std::size_t bytes) {
    const std::size_t most = total_memory() / bytes;
    if (size < 0 || static_cast<std::uint64_t>(size) > most)
        throw InvalidArgument(
            fmt::format("Loader: {} is {}; expected 0 to {}, which fit in this machine's memory", what, size, most));
}

/// Bytes of `rows` rows of all fields, each field aligned. Throws InvalidArgument for fields that no memory can hold.
std::size_t bytes_of_fields(std::span<const RowField> fields, std::int64_t rows, std::vector<std::size_t>& offsets) {
    std::size_t total = 0;
    for (std::size_t f = 0; f < fields.size(); ++f) {
        const Shape& shape = fields[f].shape;
        const auto refuse = [&](const char* expected) {
            throw InvalidArgument(fmt::format("Loader: fields() of the dataset: field {} has shape {}; expected {}", f,
                                              shape.str(), expected));
        };
        if (shape.dims() >= Shape::max_dims) refuse("at most 7 dimensions, without the batch dimension");
        if (std::any_of(shape.begin(), shape.end(), [](std::int64_t size) { return size < 0; }))
            refuse("sizes of 0 or more");
        std::size_t bytes = size_of(fields[f].dtype) * static_cast<std::size_t>(rows);
        bool fits = true;
        for (const std::int64_t size : shape)
            fits = !__builtin_mul_overflow(bytes, static_cast<std::size_t>(size), &bytes) && fits;
        const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
        if (!empty && (!fits || bytes > total_memory() - std::min(total, total_memory())))
            refuse("a batch of rows that fits in this machine's memory");
        if (empty) bytes = 0;
        offsets.push_back(total);
        total += round_up(bytes, field_alignment);
    }
    return total;
}

void require_count(const char* what, std::int64_t count, std::int64_t said) {
    if (count != said)
        throw InvalidArgument(fmt::format(
            "Loader: the sampler returned {} {} for this epoch; expected {}, as it declared", count, what, said));
}

/// Rows of the dataset in the order that `options` select.
std::vector<std::int64_t> rows_of_epoch(const LoaderOptions& options, std::int64_t size, std::uint64_t epoch) {
    if (options.sampler) return options.sampler.indices(epoch, options.batch_size);
    if (options.shuffle) return shuffled_order(size, options.seed, epoch);
    return rows_in_order("Loader", size);
}

EpochOrder batches_of_sampler(const AnySampler& sampler, std::uint64_t epoch) {
    const std::vector<std::vector<std::int64_t>> batches = sampler.batches(epoch);
    require_count("batches", std::ssize(batches), sampler.batch_count());
    EpochOrder order;
    order.begins.push_back(0);
    for (const std::vector<std::int64_t>& batch : batches) {
        if (batch.empty() || std::ssize(batch) > sampler.batch_size())
            throw InvalidArgument(
                fmt::format("Loader: batch {} of the sampler has {} rows; expected 1 to its batch_size(), {}",
                            order.begins.size() - 1, batch.size(), sampler.batch_size()));
        order.rows.insert(order.rows.end(), batch.begin(), batch.end());
        order.begins.push_back(std::ssize(order.rows));
    }
    return order;
}

/// Throws InvalidArgument if a sampler returns a different number of rows than announced, or rows outside `size`.
EpochOrder order_of_epoch(const LoaderOptions& options, std::int64_t size, std::int64_t batches, std::uint64_t epoch) {
    EpochOrder order;
    if (options.sampler.is_batching()) {
        order = batches_of_sampler(options.sampler, epoch);
    } else {
        order.rows = rows_of_epoch(options, size, epoch);
    }
    if (options.sampler) {
        require_count("rows", std::ssize(order.rows), options.sampler.rows());
        require_rows_of("Loader: the sampler", order.rows, size);
    }
    if (!options.sampler.is_batching()) {
        for (std::int64_t batch = 0; batch < batches; ++batch) order.begins.push_back(batch * options.batch_size);
        order.begins.push_back(batches <= std::ssize(order.rows) / options.batch_size ? batches * options.batch_size
                                                                                      : std::ssize(order.rows));
    }
    return order;
}

}  // namespace

struct BatchLoader::State {
    /// Pinned memory of one batch.
    struct Slot {
        std::shared_ptr<Buffer> memory;
        std::vector<std::byte*> fields;
        std::shared_ptr<std::vector<Event>> copied;  // recorded after the copies from it
    };

    State(const Engine& engine, std::shared_ptr<const RowSource> read_from, const LoaderOptions& wanted)
        : options(checked(wanted)), source(std::move(read_from)), size(source->size()) {
        require_size("size() of the dataset", size, sizeof(std::int64_t));
        if (size < 1) throw InvalidArgument("Loader: the dataset is empty");
        const std::int64_t sampled = options.sampler ? options.sampler.rows() : size;
        require_size(options.sampler.is_batching() ? "rows() of the sampler" : "size() of the sampler", sampled,
                     sizeof(std::int64_t));
        const std::int64_t whole = sampled / options.batch_size;
        if (options.sampler.is_batching())
            batches = options.sampler.batch_count();
        else
            batches = options.drop_last || sampled % options.batch_size == 0 ? whole : whole + 1;
        if (options.sampler.is_batching() && batches > sampled)
            throw InvalidArgument(
                fmt::format("Loader: size() of the sampler is {} batches, rows() is {}; expected a row or more in each",
                            batches, sampled));
        if (batches < 1 || sampled < 1)
            throw InvalidArgument(
                fmt::format("Loader: {} rows make no batch of {}; expected a smaller batch size, or drop_last = false",
                            sampled, options.batch_size));
        rows = !options.sampler.is_batching() && batches == whole ? batches * options.batch_size : sampled;
        held = engine.held_shards();
        devices.assign(static_cast<std::size_t>(engine.shards()), engine.devices()[0]);
        for (int shard = held.first; shard < held.last; ++shard)
            devices[static_cast<std::size_t>(shard)] = engine.device_of_shard(shard);
        if (options.batch_size < engine.shards())
            warn(
                fmt::format("Loader: batches of {} rows for {} shards: {} of them have no rows; expected a larger "
                            "batch or fewer shards",
                            options.batch_size, engine.shards(),
                            engine.shards() - cut_batch(options.batch_size, engine.shards()).present));
        // A rank reads only the rows of its shards. Their number is largest if every shard is full: a shorter batch may
        // give a rank more rows than a longer one, but never shards with more rows.
        const std::int64_t most = std::min(options.batch_size, rows);
        const std::int64_t max_held = std::min(most, cut_batch(most, engine.shards()).chunk * held.size());
        std::vector<std::size_t> offsets;
        const std::size_t bytes = bytes_of_fields(source->fields(), max_held, offsets);
        const auto slot_count = static_cast<std::size_t>(options.prefetch) + 1;
        require_size("prefetch + 1", static_cast<std::int64_t>(slot_count), std::max<std::size_t>(bytes, 1));
        // One more than those being read, so that reading continues while the copies of the last one run.
        slots.resize(slot_count);
        for (Slot& slot : slots) {
            slot.memory = Buffer::allocate_pinned(bytes);
            for (const Device device : devices) slot.memory->used_on(Stream::of(device, StreamRole::input));
            for (const std::size_t offset : offsets)
                slot.fields.push_back(static_cast<std::byte*>(slot.memory->data()) + offset);
        }
        reader = std::make_unique<internal::BatchReader>(source, options.workers, slots.size());
    }

    Slot& slot_of(std::int64_t batch) { return slots[number_of(batch)]; }
    std::size_t number_of(std::int64_t batch) const { return static_cast<std::size_t>(batch) % slots.size(); }
    /// Position of a batch's first row in the epoch's order.
    std::int64_t begin_of(std::int64_t batch) const { return order.begins[static_cast<std::size_t>(batch)]; }
    BatchCut cut_of(std::int64_t batch) const {
        return cut_batch(begin_of(batch + 1) - begin_of(batch), static_cast<int>(devices.size()));
    }
    /// The rows [first, last) of a batch that this process reads.
    std::pair<std::int64_t, std::int64_t> held_rows(const BatchCut& cut) const {
        const ShardRange own = held.among(cut.present);
        if (own.empty()) return {0, 0};
        return {cut.first_row(own.first), cut.first_row(own.last - 1) + cut.rows_of(own.last - 1)};
    }

    /// Starts reading as many batches as there are free slots.
    void read_ahead() {
        const std::int64_t most = options.workers > 0 ? std::ssize(slots) : 1;
        while (to_read < batches && to_read - to_upload < most) {
            Slot& slot = slot_of(to_read);
            if (slot.copied) {
                const bool needed = to_read == to_upload;  // no other batch is being read, so waiting is worthwhile
                for (const Event& event : *slot.copied) {
                    if (needed)
                        event.synchronize();
                    else if (!event.done())
                        return;
                }
                slot.copied.reset();
            }
            const auto [first, last] = held_rows(cut_of(to_read));
            const std::span<const std::int64_t> own = std::span<const std::int64_t>(order.rows)
                                                          .subspan(static_cast<std::size_t>(begin_of(to_read) + first),
                                                                   static_cast<std::size_t>(last - first));
            reader->fill(number_of(to_read), own, slot.fields, {options.seed, epoch});
            ++to_read;
        }
    }

    /// Enqueues the copies of batch `to_upload`, which has been read.
    void upload() {
        reader->wait(number_of(to_upload));
        Slot& slot = slot_of(to_upload);
        const BatchCut cut = cut_of(to_upload);
        const std::int64_t first_row = held_rows(cut).first;
        const ShardRange own = held.among(cut.present);
        const auto& fields = source->fields();
        std::vector<std::vector<Tensor>> shards(fields.size());
        const auto ready = free_events();
        slot.copied = ready;
        for (int shard = 0; shard < cut.present; ++shard) {
            const Device device = devices[static_cast<std::size_t>(shard)];
            Stream& stream = Stream::of(device, StreamRole::input);
            for (std::size_t f = 0; f < fields.size(); ++f) {
                Shape shape = fields[f].shape;
                shape.insert(0, own.contains(shard) ? cut.rows_of(shard) : 0);
                if (!own.contains(shard)) {
                    shards[f].push_back(Tensor::empty(shape, fields[f].dtype));
                    continue;
                }
                const std::size_t bytes = fields[f].row_bytes() * static_cast<std::size_t>(cut.rows_of(shard));
                std::shared_ptr<Buffer> buffer = Buffer::allocate(stream, bytes, "batches");
                stream.copy(
                    buffer->data(), device,
                    slot.fields[f] + fields[f].row_bytes() * static_cast<std::size_t>(cut.first_row(shard) - first_row),
                    Device::host(), bytes);
                shards[f].push_back(
                    tensor_over(std::move(buffer), TensorMeta::contiguous(fields[f].dtype, shape, true)));
            }
            if (own.contains(shard)) stream.record((*ready)[static_cast<std::size_t>(shard)]);
        }
        std::vector<ShardedTensor> batch;
        for (auto& parts : shards) batch.emplace_back(cut, std::move(parts), ready, own);
        uploaded.push_back(std::move(batch));
        ++to_upload;
    }

    /// Events that no batch refers to any more, one per shard.
    std::shared_ptr<std::vector<Event>> free_events() {
        for (const auto& known : events)
            if (known.use_count() == 1) return known;
        auto fresh = std::make_shared<std::vector<Event>>();
        for (const Device device : devices) fresh->emplace_back(device);
        events.push_back(fresh);
        return fresh;
    }

    void stop() noexcept {
        reader->cancel();
        uploaded.clear();
        to_read = to_upload = batches;
    }

    OneThreadAtATime one_thread{"this loader"};
    const int made_in = forked::generation();
    LoaderOptions options;
    std::shared_ptr<const RowSource> source;
    std::int64_t size;
    std::int64_t batches = 0, rows = 0;  // numbers in an epoch
    std::vector<Device> devices;         // devices of the shards; unused for those of other processes
    ShardRange held;
    std::vector<Slot> slots;
    std::vector<std::shared_ptr<std::vector<Event>>> events;
    std::uint64_t epoch = 0;
    EpochOrder order;
    std::deque<std::vector<ShardedTensor>> uploaded;
    std::int64_t to_read = 0, to_upload = 0;  // numbers of the next batches
    std::uint64_t run = 0;
    std::unique_ptr<internal::BatchReader> reader;  // destroyed first: its threads write into the slots
};

BatchLoader::BatchLoader(const Engine& engine, std::shared_ptr<const RowSource> source, const LoaderOptions& options)
    : state_(std::make_unique<State>(engine, std::move(source), options)) {}
BatchLoader::~BatchLoader() {
    const bool of_parent = state_->made_in != forked::generation();
    // A thread that is inside a call, or reads for one, while another thread ends the process, never returns.
    if (of_parent ||
        (process_exit::begun() && (state_->one_thread.used_by_another() || state_->reader->is_reading_here())))
        forked::keep(std::move(state_));
}

std::int64_t BatchLoader::batches() const { return state_->batches; }
std::int64_t BatchLoader::rows() const { return state_->rows; }
const LoaderOptions& BatchLoader::options() const { return state_->options; }

std::uint64_t BatchLoader::begin(std::uint64_t epoch, std::int64_t first_batch) {
    State& state = *state_;
    const OneThreadAtATime::Use use(state.one_thread, "Loader");
    if (first_batch < 0 || first_batch > state.batches)
        throw InvalidArgument(
            fmt::format("Loader: an epoch cannot begin at batch {} of {}", first_batch, state.batches));
    if (const std::int64_t size = state.source->size(); size != state.size)
        throw InvalidArgument(fmt::format(
            "Loader: size() of the dataset is {}, but was {} when the loader was constructed", size, state.size));
    EpochOrder order = order_of_epoch(state.options, state.size, state.batches, epoch);
    state.stop();
    state.order = std::move(order);
    state.epoch = epoch;
    state.to_read = state.to_upload = first_batch;
    // Slots are selected by the number of the batch: copies of the last epoch may still read any of them.
    for (State::Slot& slot : state.slots) {
        if (!slot.copied) continue;
        for (const Event& event : *slot.copied) event.synchronize();
        slot.copied.reset();
    }
    if (state.options.workers > 0) state.read_ahead();
    return ++state.run;
}

std::vector<ShardedTensor> BatchLoader::next(std::uint64_t run) {
    State& state = *state_;
    const OneThreadAtATime::Use use(state.one_thread, "Loader");
    if (run != state.run)
        throw InvalidArgument(
            "Loader: this epoch ended when another one began; finish an epoch before you begin the next");
    try {
        if (state.uploaded.empty() && state.to_upload == state.batches) return {};
        if (state.uploaded.empty()) {
            if (state.to_read == state.to_upload) state.read_ahead();
            state.upload();
        }
        while (state.options.workers > 0) {
            state.read_ahead();
            if (std::ssize(state.uploaded) > state.options.prefetch || state.to_upload == state.to_read ||
                !state.reader->ready(state.number_of(state.to_upload)))
                break;
            state.upload();
        }
    } catch (...) {
        state.stop();
        throw;
    }
    std::vector<ShardedTensor> batch = std::move(state.uploaded.front());
    state.uploaded.pop_front();
    return batch;
}

void BatchLoader::end(std::uint64_t run) noexcept {
    if (run == state_->run && state_->made_in == forked::generation()) state_->stop();
}

}  // namespace detail

}  // namespace lockstep
