#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/loader.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string>

#include "lockstep/ops/layers.h"
#include "lockstep/parallel/data/idx.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/random.h"
#include "lockstep/samples/data/digits.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/environment.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::TemporaryDirectory;

namespace {

const bool eight_devices = lockstep::test::set_cpu_devices(8);

struct Net {
    Linear fc{3, 2};
    LOCKSTEP_MEMBERS(fc)
    Tensor forward(const Tensor& x) { return log_softmax(fc(x), 1); }
};

Devices some(int count) {
    std::vector<Device> list;
    for (int i = 0; i < count; ++i) list.push_back(Device::cpu(i));
    return Devices(list);
}

DataParallel<Net> model_of(int devices, int shards) {
    return DataParallel<Net>(Net{}, some(devices), {.shards = shards});
}

/// Row i holds (i, 1000 + i, -i) and class i % 2.
TensorDataset<2> numbered(std::int64_t rows) {
    std::vector<float> x;
    std::vector<std::int64_t> y;
    for (std::int64_t i = 0; i < rows; ++i) {
        for (const std::int64_t v : {i, 1000 + i, -i}) x.push_back(static_cast<float>(v));
        y.push_back(i % 2);
    }
    return TensorDataset(Tensor::from(x, {rows, 3}), Tensor::from(y, {rows}));
}

/// The same rows, one tensor each; optionally one row that cannot be read.
struct RowByRow {
    std::int64_t rows = 0;
    std::int64_t bad = -1;
    std::int64_t size() const { return rows; }
    std::tuple<Tensor, Tensor> get(std::int64_t i) const {
        if (i == bad) throw DataError("numbers.bin: offset 17: row cannot be read");
        const std::vector<float> x{static_cast<float>(i), static_cast<float>(1000 + i), static_cast<float>(-i)};
        return {Tensor::from(x, {3}), Tensor::from(std::vector<std::int64_t>{i % 2}, {})};
    }
};

/// Numbers of the rows of an epoch, batch by batch; checks that all fields belong together.
template <class Data>
std::vector<std::vector<std::int64_t>> rows_of_epoch(Loader<Data>& loader, std::uint64_t epoch) {
    std::vector<std::vector<std::int64_t>> batches;
    for (auto& [x, y] : loader.epoch(epoch)) {
        const auto values = x.gathered().template to_vector<float>();
        const auto classes = y.gathered().template to_vector<std::int64_t>();
        REQUIRE(values.size() == classes.size() * 3);
        auto& rows = batches.emplace_back();
        for (std::size_t i = 0; i < classes.size(); ++i) {
            const auto row = static_cast<std::int64_t>(values[3 * i]);
            CHECK(values[3 * i + 1] == static_cast<float>(1000 + row));
            CHECK(values[3 * i + 2] == static_cast<float>(-row));
            CHECK(classes[i] == row % 2);
            rows.push_back(row);
        }
    }
    return batches;
}

/// The batches of an order.
std::vector<std::vector<std::int64_t>> cut(const std::vector<std::int64_t>& order, std::size_t size) {
    std::vector<std::vector<std::int64_t>> batches;
    for (std::size_t i = 0; i < order.size(); i += size)
        batches.emplace_back(order.begin() + static_cast<std::ptrdiff_t>(i),
                             order.begin() + static_cast<std::ptrdiff_t>(std::min(i + size, order.size())));
    return batches;
}

}  // namespace

TEST_CASE("the order of an epoch is a Fisher-Yates shuffle of its seed and number") {
    const std::int64_t count = 1000;
    const auto order = shuffled_order(count, 7, 3);
    std::vector<std::int64_t> expected(static_cast<std::size_t>(count));
    std::iota(expected.begin(), expected.end(), 0);
    CHECK(std::is_permutation(order.begin(), order.end(), expected.begin()));
    CHECK(order != expected);
    for (std::size_t left = expected.size(); left > 1; --left) {
        const auto bits = philox(StepCounters{7, 3, 0}, 0x6f726465, left);
        __extension__ using Wide = unsigned __int128;
        const Wide number = (Wide{bits[0]} << 32 | bits[1]) * left;
        std::swap(expected[left - 1], expected[static_cast<std::size_t>(number >> 64)]);
    }
    CHECK(order == expected);
    CHECK(order == shuffled_order(count, 7, 3));
    CHECK(order != shuffled_order(count, 8, 3));
    CHECK(order != shuffled_order(count, 7, 4));
    CHECK(shuffled_order(0, 1, 1).empty());
    CHECK_THROWS_AS(shuffled_order(-1, 0, 0), InvalidArgument);

    // Every row is the first one about equally often.
    std::vector<int> first(8, 0);
    for (std::uint64_t epoch = 0; epoch < 8000; ++epoch)
        ++first[static_cast<std::size_t>(shuffled_order(8, 1, epoch)[0])];
    for (const int times : first) CHECK(std::abs(times - 1000) < 150);
}

TEST_CASE("batches are the same for any number of devices, workers and kinds of dataset") {
    const auto order = shuffled_order(101, 5, 2);
    for (const auto& [devices, shards] : {std::pair{1, 0}, {2, 0}, {3, 8}, {8, 8}, {2, 3}})
        for (const int workers : {0, 1, 3}) {
            CAPTURE(devices, shards, workers);
            auto model = model_of(devices, shards);
            const LoaderOptions options{
                .batch_size = 16, .shuffle = true, .seed = 5, .workers = workers, .prefetch = 1 + devices % 3};
            Loader loader(model, numbered(101), options);
            CHECK(loader.batches() == 7);
            CHECK(rows_of_epoch(loader, 2) == cut(order, 16));
            CHECK(rows_of_epoch(loader, 2) == cut(order, 16));
            Loader by_row(model, RowByRow{101}, options);
            CHECK(rows_of_epoch(by_row, 2) == cut(order, 16));
        }
}

TEST_CASE("shards are on the model's devices, cut like torch.chunk") {
    auto model = model_of(3, 7);
    Loader loader(model, numbered(84), {.batch_size = 64});
    std::vector<std::vector<std::int64_t>> rows;
    for (auto& [x, y] : loader.epoch(0)) {
        auto& counts = rows.emplace_back();
        for (int shard = 0; shard < x.shards(); ++shard) {
            CHECK(x.shard(shard).device() == model.engine().device_of_shard(shard));
            CHECK(x.shard(shard).is_batch());
            CHECK(x.shard(shard).dtype() == DType::f32);
            CHECK(y.shard(shard).dtype() == DType::i64);
            CHECK(x.ready(shard) != nullptr);
            counts.push_back(x.shard(shard).size(0));
        }
    }
    CHECK(rows == std::vector<std::vector<std::int64_t>>{{10, 10, 10, 10, 10, 10, 4}, {3, 3, 3, 3, 3, 3, 2}});
}

TEST_CASE("drop_last omits the short batch, and an epoch can start in the middle") {
    auto model = model_of(2, 0);
    Loader all(model, numbered(50), {.batch_size = 16});
    Loader whole(model, numbered(50), {.batch_size = 16, .drop_last = true});
    std::vector<std::int64_t> order(50);
    std::iota(order.begin(), order.end(), 0);
    auto expected = cut(order, 16);
    CHECK(rows_of_epoch(all, 0) == expected);
    CHECK(all.rows() == 50);
    expected.pop_back();
    CHECK(rows_of_epoch(whole, 9) == expected);
    CHECK(whole.rows() == 48);

    std::vector<float> first;
    for (auto& [x, y] : all.epoch(0, 2)) first.push_back(x.gathered().to_vector<float>()[0]);
    CHECK(first == std::vector<float>{32, 48});
    for (auto& batch : all.epoch(0, 4)) FAIL("a batch of " << std::get<0>(batch).rows() << " rows after the last");
    CHECK_THROWS_AS(all.epoch(0, 5), InvalidArgument);
    CHECK_THROWS_AS(all.epoch(0, -1), InvalidArgument);
}

TEST_CASE("training from the loader is bit-identical to training from tensors") {
    const auto train = [](auto&& batches) {
        manual_seed(3);
        auto model = model_of(2, 4);
        SGD sgd(model, {.lr = 0.001, .momentum = 0.5});
        std::vector<double> losses;
        batches(model, [&](const auto& x, const auto& y) { losses.push_back(model.step(sgd, x, y, nll_loss).item()); });
        return losses;
    };
    const auto loaded = train([](auto& model, auto step) {
        Loader loader(model, numbered(37), {.batch_size = 10});
        for (int epoch = 0; epoch < 3; ++epoch)
            for (auto& [x, y] : loader.epoch(0)) step(x, y);
    });
    const auto plain = train([](auto&, auto step) {
        const auto data = numbered(37);
        for (int epoch = 0; epoch < 3; ++epoch)
            for (std::int64_t first = 0; first < 37; first += 10) {
                std::vector<std::int64_t> rows(static_cast<std::size_t>(std::min<std::int64_t>(10, 37 - first)));
                std::iota(rows.begin(), rows.end(), first);
                std::vector<float> x(rows.size() * 3);
                std::vector<std::int64_t> y(rows.size());
                std::byte* const to[] = {reinterpret_cast<std::byte*>(x.data()),
                                         reinterpret_cast<std::byte*>(y.data())};
                data.read(rows, to);
                step(Tensor::from(x, {std::ssize(rows), 3}), Tensor::from(y, {std::ssize(rows)}));
            }
    });
    CHECK(loaded.size() == 12);
    CHECK(loaded == plain);
    CHECK(loaded.front() != loaded.back());
}

TEST_CASE("exceptions while reading are thrown by the epoch, and the loader stays usable") {
    auto model = model_of(2, 0);
    for (const int workers : {0, 2}) {
        Loader loader(model, RowByRow{64, 40}, {.batch_size = 8, .workers = workers});
        int good = 0;
        const auto go = [&] {
            for (auto& [x, y] : loader.epoch(0)) good += x.rows() == 8 ? 1 : 0;
        };
        CHECK_THROWS_WITH(go(), contains("row cannot be read"));
        CHECK(good == 5);
        CHECK_THROWS_AS(go(), DataError);
        CHECK(good == 10);
    }
}

TEST_CASE("an epoch may be left early and outlive its loader") {
    auto model = model_of(2, 0);
    ShardedTensor kept;
    {
        Loader loader(model, numbered(1000), {.batch_size = 4, .workers = 2, .prefetch = 8});
        for (int times = 0; times < 20; ++times)
            for (auto& [x, y] : loader.epoch(0)) {
                kept = x;
                break;
            }
        auto first = loader.epoch(0);
        auto at = first.begin();
        auto second = loader.epoch(1);
        CHECK_THROWS_AS(++at, InvalidArgument);
        CHECK(second.begin() != std::default_sentinel);
    }
    CHECK(kept.gathered().to_vector<float>()[3] == 1);
    auto loader = std::make_unique<Loader<TensorDataset<2>>>(model, numbered(20), LoaderOptions{.batch_size = 4});
    auto epoch = loader->epoch(0);
    loader.reset();
    int batches = 0;
    for (auto& batch : epoch) batches += std::get<0>(batch).rows() == 4 ? 1 : 0;
    CHECK(batches == 5);
}

TEST_CASE("bad loaders and datasets are rejected") {
    auto model = model_of(2, 0);
    const auto make = [&](const LoaderOptions& options) { Loader loader(model, numbered(10), options); };
    CHECK_THROWS_WITH(make({.batch_size = 0}), contains("batch size 0"));
    CHECK_THROWS_AS(make({.batch_size = 4, .workers = -1}), InvalidArgument);
    CHECK_THROWS_AS(make({.batch_size = 4, .prefetch = 0}), InvalidArgument);
    CHECK_THROWS_WITH(make({.batch_size = 11, .drop_last = true}), contains("no batch"));
    CHECK_THROWS_WITH((Loader(model, RowByRow{0}, {.batch_size = 1})), contains("empty"));
    const Tensor ten = Tensor::zeros({10, 2}), nine = Tensor::zeros({9});
    CHECK_THROWS_WITH(TensorDataset(ten, nine), contains("10 rows"));
    CHECK_THROWS_AS(TensorDataset(Tensor::scalar(1)), InvalidArgument);
    const Tensor elsewhere = Tensor::zeros({10}, DType::f32, Device::cpu(1));
    CHECK_THROWS_WITH(TensorDataset(elsewhere), contains("cpu:1"));

    std::vector<std::string> warnings;
    const auto before = set_log_handler([&](LogLevel, const std::string& text) { warnings.push_back(text); });
    auto many = model_of(2, 8);
    Loader small(many, numbered(10), {.batch_size = 5});
    set_log_handler(before);
    REQUIRE(warnings.size() == 1);
    CHECK_THAT(warnings[0], contains("5 rows for 8 shards: 3 of them"));
    CHECK(rows_of_epoch(small, 0).size() == 2);
}

TEST_CASE("rows of different shapes are rejected by name") {
    struct Ragged {
        std::int64_t size() const { return 10; }
        std::tuple<Tensor> get(std::int64_t i) const { return {Tensor::zeros({i < 7 ? 2 : 3})}; }
    };
    auto model = model_of(1, 0);
    Loader loader(model, Ragged{}, {.batch_size = 4});
    const auto go = [&] {
        for (auto& [x] : loader.epoch(0)) CHECK(x.rows() == 4);
    };
    CHECK_THROWS_WITH(go(), contains("row 7"));
}

TEST_CASE("Mnist reads images in 0..1 or normalised, and rejects mismatched files") {
    const TemporaryDirectory directory;
    samples::write_digits(directory.path(), {.train_count = 30, .test_count = 12, .seed = 4, .gzip = true});
    const MnistFiles files = find_mnist(directory.path());
    const IdxArray pixels = read_idx(files.train_images), labels = read_idx(files.train_labels);
    const Mnist plain(directory.path()), test(directory.path(), {.train = false});
    const Mnist normalised(directory.path(), {.mean = 0.1307, .stddev = 0.3081});
    CHECK(plain.size() == 30);
    CHECK(test.size() == 12);
    for (const std::int64_t row : {0, 17, 29}) {
        const auto [image, label] = plain.get(row);
        CHECK(image.shape() == Shape{1, 28, 28});
        CHECK(label.item() == static_cast<double>(labels.data[static_cast<std::size_t>(row)]));
        const auto values = image.to_vector<float>(), scaled = std::get<0>(normalised.get(row)).to_vector<float>();
        bool same = true;
        for (std::size_t p = 0; p < values.size(); ++p) {
            const double wanted = static_cast<double>(pixels.data[static_cast<std::size_t>(row) * 784 + p]) / 255;
            same =
                same && std::abs(values[p] - wanted) < 1e-7 && std::abs(scaled[p] - (wanted - 0.1307) / 0.3081) < 1e-6;
        }
        CHECK(same);
    }
    CHECK_THROWS_AS(plain.get(30), InvalidArgument);
    CHECK_THROWS_AS(Mnist(directory.path(), {.stddev = 0}), InvalidArgument);

    const auto replace_labels = [&](std::vector<std::uint8_t> wrong) {
        const std::int64_t count[] = {std::ssize(wrong)};
        write_idx(files.train_labels, DType::u8, count, std::as_bytes(std::span(wrong)), IdxCompression::gzip);
    };
    replace_labels(std::vector<std::uint8_t>(29, 1));
    CHECK_THROWS_WITH(Mnist(directory.path()), contains("29 labels"));
    std::vector<std::uint8_t> eleven(30, 1);
    eleven[5] = 11;
    replace_labels(eleven);
    CHECK_THROWS_WITH(Mnist(directory.path()), contains("offset 13: label 11 of image 5"));
    const std::int64_t flat[] = {30};
    write_idx(files.train_images, DType::u8, flat, std::as_bytes(std::span(eleven)), IdxCompression::gzip);
    CHECK_THROWS_WITH(Mnist(directory.path()), contains("3 dimensions"));
    CHECK_THROWS_AS(Mnist(directory / "nothing"), DataError);
}

namespace {

/// Reports sizes that a test sets.
struct Reporting {
    std::int64_t rows = 8;
    std::shared_ptr<Shape> shape = std::make_shared<Shape>(Shape{3});
    std::shared_ptr<std::int64_t> size_now = nullptr;
    std::int64_t size() const { return size_now ? *size_now : rows; }
    std::array<RowField, 1> fields() const { return {RowField{DType::f32, *shape}}; }
    void read(std::span<const std::int64_t> wanted, std::span<std::byte* const> to) const {
        const std::size_t bytes = fields()[0].row_bytes();
        for (std::size_t i = 0; i < wanted.size(); ++i) std::fill_n(to[0] + i * bytes, bytes, std::byte{1});
    }
};

struct ClaimingSampler {
    std::int64_t claim;
    std::int64_t size() const { return claim; }
    std::vector<std::int64_t> indices(std::uint64_t) const { return {0, 1}; }
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

template <class F>
std::string refused(F call) {
    try {
        call();
    } catch (const InvalidArgument& error) {
        return error.what();
    }
    return {};
}

}  // namespace

TEST_CASE("sizes that a dataset or sampler reports are checked before anything is allocated") {
    DataParallel<Net> model = model_of(1, 1);
    constexpr std::int64_t huge = std::int64_t{1} << 60;
    const auto made = [&](Reporting data, const LoaderOptions& options) {
        return refused([&] { Loader loader(model, data, options); });
    };
    for (const Shape& shape : {Shape{-3}, Shape{3, -1}, Shape{huge, 16, 16}, Shape{huge}, Shape{1 << 30, 1 << 30},
                               Shape{-huge, -huge}, Shape{1, 1, 1, 1, 1, 1, 1, 1}}) {
        Reporting data;
        *data.shape = shape;
        const std::string text = made(data, {.batch_size = 2});
        INFO(text);
        CHECK(has(text, "fields() of the dataset: field 0 has shape " + shape.str()));
    }
    CHECK(has(made({.rows = huge}, {}), "size() of the dataset is 1152921504606846976"));
    CHECK(has(made({.rows = -1}, {}), "size() of the dataset is -1"));
    for (const std::int64_t claim : {huge, std::int64_t{-5}, std::numeric_limits<std::int64_t>::max()})
        CHECK(has(made({}, {.batch_size = 2, .sampler = ClaimingSampler{claim}}),
                  "size() of the sampler is " + std::to_string(claim)));
    Loader wrong(model, Reporting{}, {.sampler = ClaimingSampler{5}});
    CHECK(has(refused([&] { wrong.epoch(0); }), "the sampler returned 2 rows"));
}

TEST_CASE("a dataset that changes its size or fields is rejected, and nothing is written") {
    DataParallel<Net> model = model_of(1, 1);
    Reporting data;
    data.size_now = std::make_shared<std::int64_t>(8);
    Loader loader(model, data, {.batch_size = 4, .workers = 0});
    *data.size_now = 4;
    CHECK(has(refused([&] { loader.epoch(0); }), "size() of the dataset is 4, but was 8"));
    *data.size_now = 8;
    auto epoch = loader.epoch(0);
    *data.shape = Shape{1000};
    CHECK(has(refused([&] { epoch.begin(); }), "field 0 is f32 (1000,), but was f32 (3,)"));
}

TEST_CASE("options at the limits of their types are rejected or work") {
    DataParallel<Net> model = model_of(1, 1);
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    Loader<TensorDataset<2>> one(model, numbered(6), {.batch_size = most});
    CHECK(one.batches() == 1);
    CHECK(one.rows() == 6);
    CHECK(rows_of_epoch(one, 0).size() == 1);
    CHECK(has(refused([&] { Loader<TensorDataset<2>>(model, numbered(6), {.batch_size = most, .drop_last = true}); }),
              "make no batch"));
    constexpr int largest = std::numeric_limits<int>::max();
    CHECK_FALSE(refused([&] { Loader<TensorDataset<2>>(model, numbered(6), {.prefetch = largest}); }).empty());
    CHECK_FALSE(refused([&] { Loader<TensorDataset<2>>(model, numbered(6), {.workers = largest}); }).empty());
    CHECK(has(refused([&] { DataParallel<Net>(Net{}, some(1), {.shards = largest}); }), "shards: 2147483647"));
    CHECK(has(refused([&] { DataParallel<Net>(Net{}, some(1), {.threads_per_shard = largest}); }),
              "threads_per_shard: 2147483647"));
    CHECK(cut_batch(most, 3).present == 3);
    CHECK(cut_batch(most, largest).rows_of(0) == most / largest + 1);
    CHECK(cut_microbatches(cut_batch(most, 1), 1).size() == 1);
    CHECK(cut_microbatches(cut_batch(5, 1), largest).size() == 5);
}
