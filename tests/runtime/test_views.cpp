// Views against a naive model: a list with the storage position of every element of a view.
#include <limits>
#include <numeric>
#include <optional>
#include <random>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/tensor.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::message_of;

namespace {

template <class F>
std::string refusal(F call) {
    return message_of<InvalidArgument>(call);
}

/// Sizes and, in row-major order, the value of each element (its position in the storage).
struct Model {
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> values;

    Shape shape() const { return Shape(std::span<const std::int64_t>(sizes)); }

    std::int64_t at(const std::vector<std::int64_t>& index) const {
        std::int64_t place = 0;
        for (std::size_t i = 0; i < sizes.size(); ++i) place = place * sizes[i] + index[i];
        return values[static_cast<std::size_t>(place)];
    }

    /// A model with other sizes; `origin` maps an index of the new model to one of this model.
    template <class F>
    Model map(const std::vector<std::int64_t>& wanted, F origin) const {
        Model result{wanted, {}};
        std::vector<std::int64_t> index(wanted.size(), 0);
        const std::int64_t count = result.shape().numel();
        for (std::int64_t n = 0; n < count; ++n) {
            std::int64_t rest = n;
            for (std::size_t i = wanted.size(); i-- > 0;) {
                index[i] = rest % wanted[i];
                rest /= wanted[i];
            }
            result.values.push_back(at(origin(index)));
        }
        return result;
    }
};

/// Random sizes with the product `count`.
std::vector<std::int64_t> factors(std::int64_t count, std::minstd_rand& random) {
    std::vector<std::int64_t> sizes;
    while (sizes.size() < 5 && (count > 1 || random() % 2)) {
        std::vector<std::int64_t> divisors;
        for (std::int64_t d = 1; d <= count; ++d)
            if (count % d == 0) divisors.push_back(d);
        sizes.push_back(divisors[random() % divisors.size()]);
        count /= sizes.back();
    }
    if (count > 1) sizes.push_back(count);
    return sizes;
}

std::size_t below(std::size_t n, std::minstd_rand& random) { return random() % n; }

void check_same(const Tensor& tensor, const Model& model) {
    REQUIRE(tensor.shape() == model.shape());
    REQUIRE(tensor.to_vector<std::int64_t>() == model.values);
}

/// Whether there are strides with which `wanted` sees the elements of (sizes, strides) in order, by trying to derive
/// each new dimension's stride from the list of storage positions.
bool can_be_view(const Model& source, const std::vector<std::int64_t>& wanted) {
    const Model target{wanted, source.values};
    if (target.values.empty()) return true;
    std::vector<std::int64_t> strides(wanted.size(), 0);
    std::int64_t inner = 1;
    for (std::size_t i = wanted.size(); i-- > 0;) {
        if (wanted[i] > 1) strides[i] = target.values[static_cast<std::size_t>(inner)] - target.values[0];
        inner *= wanted[i];
    }
    for (std::size_t n = 0; n < target.values.size(); ++n) {
        std::int64_t rest = static_cast<std::int64_t>(n);
        std::int64_t place = target.values[0];
        for (std::size_t i = wanted.size(); i-- > 0;) {
            place += rest % wanted[i] * strides[i];
            rest /= wanted[i];
        }
        if (place != target.values[n]) return false;
    }
    return true;
}

}  // namespace

TEST_CASE("chains of random views agree with the model, and reshape copies only if necessary") {
    std::minstd_rand random(11);
    int views = 0;
    int copies = 0;
    for (int round = 0; round < 1500; ++round) {
        constexpr std::int64_t sizes[] = {1, 4, 6, 12, 24, 36, 60, 64};
        Model model;
        model.sizes = factors(sizes[below(8, random)], random);
        model.values.resize(static_cast<std::size_t>(model.shape().numel()));
        std::iota(model.values.begin(), model.values.end(), 0);
        Tensor tensor = Tensor::from(model.values, model.shape());
        bool shares = true;  // values are positions in the storage only while no copy was made
        for (int step = 0; step < 5; ++step) {
            const std::size_t dims = model.sizes.size();
            const auto choice = below(6, random);
            if (choice == 0 && dims >= 2) {
                const std::size_t a = below(dims, random), b = below(dims, random);
                auto wanted = model.sizes;
                std::swap(wanted[a], wanted[b]);
                model = model.map(wanted, [&](std::vector<std::int64_t> index) {
                    std::swap(index[a], index[b]);
                    return index;
                });
                tensor = tensor.transpose(static_cast<int>(a), static_cast<int>(b) - static_cast<int>(dims));
            } else if (choice == 1 && dims >= 1) {
                const std::size_t d = below(dims, random);
                const auto size = static_cast<std::size_t>(model.sizes[d]);
                const auto start = static_cast<std::int64_t>(below(size + 1, random));
                const auto end =
                    start + static_cast<std::int64_t>(below(size + 1 - static_cast<std::size_t>(start), random));
                const auto by = static_cast<std::int64_t>(1 + below(3, random));
                auto wanted = model.sizes;
                wanted[d] = (end - start + by - 1) / by;
                model = model.map(wanted, [&](std::vector<std::int64_t> index) {
                    index[d] = start + index[d] * by;
                    return index;
                });
                tensor = tensor.slice(static_cast<int>(d), start, end, by);
            } else if (choice == 2 && dims >= 1) {
                const std::size_t d = below(dims, random);
                if (model.sizes[d] == 0) continue;
                const auto at = static_cast<std::int64_t>(below(static_cast<std::size_t>(model.sizes[d]), random));
                auto wanted = model.sizes;
                wanted.erase(wanted.begin() + static_cast<std::ptrdiff_t>(d));
                model = model.map(wanted, [&](std::vector<std::int64_t> index) {
                    index.insert(index.begin() + static_cast<std::ptrdiff_t>(d), at);
                    return index;
                });
                tensor = tensor.select(static_cast<int>(d), at);
            } else if (choice == 3 && dims <= 4) {
                const std::size_t d = below(dims + 1, random);
                auto wanted = model.sizes;
                wanted.insert(wanted.begin() + static_cast<std::ptrdiff_t>(d), 1);
                model = model.map(wanted, [&](std::vector<std::int64_t> index) {
                    index.erase(index.begin() + static_cast<std::ptrdiff_t>(d));
                    return index;
                });
                tensor = tensor.unsqueeze(static_cast<int>(d));
            } else if (choice == 4 && dims <= 4) {
                auto wanted = model.sizes;
                wanted.insert(wanted.begin(), 2);
                for (std::size_t i = 1; i < wanted.size(); ++i)
                    if (wanted[i] == 1) wanted[i] = 3;
                if (std::accumulate(wanted.begin(), wanted.end(), std::int64_t{1}, std::multiplies<>()) > 600) continue;
                const auto own = model.sizes;
                model = model.map(wanted, [&](const std::vector<std::int64_t>& index) {
                    std::vector<std::int64_t> origin(index.begin() + 1, index.end());
                    for (std::size_t i = 0; i < origin.size(); ++i)
                        if (own[i] == 1) origin[i] = 0;
                    return origin;
                });
                tensor = tensor.expand(model.shape());
            } else if (choice == 5 && !model.values.empty()) {
                const auto wanted = factors(static_cast<std::int64_t>(model.values.size()), random);
                if (model.shape() == Shape(std::span<const std::int64_t>(wanted))) continue;
                const bool possible = can_be_view(model, wanted);
                const auto storage = tensor.impl()->storage;
                model.sizes = wanted;
                tensor = tensor.reshape(model.shape());
                const bool view = tensor.impl()->storage == storage;
                if (shares) {
                    INFO("reshape to " << model.shape().str());
                    REQUIRE(view == possible);
                }
                shares = shares && view;
                ++(view ? views : copies);
            }
            check_same(tensor, model);
        }
    }
    CHECK(views > 100);
    CHECK(copies > 100);
}

TEST_CASE("reshape infers the open size and rejects mismatched ones") {
    const Tensor tensor = Tensor::zeros({4, 6});
    CHECK(tensor.reshape({2, -1, 3}).shape() == Shape{2, 4, 3});
    CHECK(tensor.reshape({-1}).shape() == Shape{24});
    CHECK(Tensor::scalar(1).reshape({1, 1}).shape() == Shape{1, 1});
    CHECK(Tensor::zeros({1}).reshape({}).dims() == 0);
    CHECK(Tensor::zeros({0, 3}).reshape({3, 0}).shape() == Shape{3, 0});
    CHECK(Tensor::zeros({0, 3}).reshape({-1, 3}).shape() == Shape{0, 3});
    CHECK(contains(refusal([&] { tensor.reshape({5, -1}); }), "(4, 6)"));
    CHECK(contains(refusal([&] { tensor.reshape({-1, -1}); }), "at most one"));
    CHECK(contains(refusal([&] { tensor.reshape({25}); }), "24 elements do not fill 25"));
    CHECK(contains(refusal([&] { tensor.reshape({-4, -6}); }), "negative"));
    CHECK(contains(refusal([&] { Tensor::zeros({0}).reshape({-1, 0}); }), "reshape"));
}

TEST_CASE("flatten, squeeze and unsqueeze") {
    const Tensor tensor = Tensor::zeros({2, 3, 1, 5});
    CHECK(tensor.flatten().shape() == Shape{30});
    CHECK(tensor.flatten(1).shape() == Shape{2, 15});
    CHECK(tensor.flatten(1, 2).shape() == Shape{2, 3, 5});
    CHECK(tensor.flatten(-3, -2).shape() == Shape{2, 3, 5});
    CHECK(Tensor::scalar(1).flatten().shape() == Shape{1});
    CHECK(tensor.squeeze(2).shape() == Shape{2, 3, 5});
    CHECK(tensor.squeeze(0).shape() == tensor.shape());
    CHECK(tensor.unsqueeze(-1).shape() == Shape{2, 3, 1, 5, 1});
    CHECK(contains(refusal([&] { tensor.flatten(2, 1); }), "is after end"));
    CHECK(contains(refusal([&] { tensor.squeeze(4); }), "4 dimensions"));
    CHECK(contains(refusal([&] { tensor.unsqueeze(6); }), "unsqueeze"));
}

TEST_CASE("select accepts negative indices, and expand keeps sizes of -1") {
    const Tensor tensor = Tensor::from(std::vector<float>{0, 1, 2, 3, 4, 5}, {3, 2});
    CHECK(tensor.select(0, -1).to_vector<float>() == std::vector<float>{4, 5});
    CHECK(tensor.select(1, -2).to_vector<float>() == std::vector<float>{0, 2, 4});
    const Tensor wide = tensor.unsqueeze(1).expand({2, -1, 3, -1});
    CHECK(wide.shape() == Shape{2, 3, 3, 2});
    CHECK(wide.select(0, 1).select(1, -1).to_vector<float>() == tensor.to_vector<float>());
}

TEST_CASE("slices count from the end and are clamped, as in Python") {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max(),
                           least = std::numeric_limits<std::int64_t>::min();
    const Tensor tensor = Tensor::arange(6);
    const auto slice = [&](std::int64_t start, std::int64_t end, std::int64_t step = 1) {
        return tensor.slice(0, start, end, step).to_vector<float>();
    };
    using Values = std::vector<float>;
    CHECK(slice(-2, 6) == Values{4, 5});
    CHECK(tensor.slice(0, -2).to_vector<float>() == Values{4, 5});
    CHECK(slice(-2, most) == Values{4, 5});
    CHECK(slice(1, -1) == Values{1, 2, 3, 4});
    CHECK(slice(-100, 2) == Values{0, 1});
    CHECK(slice(least, -5) == Values{0});
    CHECK(slice(0, 100, 4) == Values{0, 4});
    CHECK(slice(-5, -1, 2) == Values{1, 3});
    for (const auto& [start, end] : std::vector<std::array<std::int64_t, 2>>{{3, 2}, {6, 6}, {7, 9}, {-1, -2}, {0, -6}})
        CHECK(slice(start, end).empty());

    const Tensor leaf = Tensor::arange(6).requires_grad_();
    sum(leaf.slice(0, -3, 100, 2)).backward();
    CHECK(leaf.grad().to_vector<float>() == Values{0, 0, 0, 1, 0, 1});
}

TEST_CASE("bad slices, selects, transposes and expands are rejected") {
    const Tensor tensor = Tensor::zeros({4, 6});
    for (const std::int64_t step : {0, -1})
        CHECK(contains(refusal([&, b = step] { tensor.slice(1, 0, 6, b); }), "(4, 6)"));
    CHECK(tensor.slice(1, 2, 6, std::numeric_limits<std::int64_t>::max()).shape() == Shape{4, 1});
    CHECK(contains(refusal([&] { tensor.slice(2, 0, 1); }), "slice"));
    CHECK(contains(refusal([&] { tensor.select(0, 4); }), "index 4"));
    CHECK(contains(refusal([&] { tensor.select(0, -5); }), "index -5"));
    CHECK(contains(refusal([&] { tensor.transpose(0, 2); }), "transpose"));
    CHECK(contains(refusal([&] { tensor.transpose(-3, 0); }), "-3"));
    CHECK(contains(refusal([&] { tensor.expand({4, 7}); }), "(4, 7)"));
    CHECK(contains(refusal([&] { tensor.expand({6}); }), "too few"));
    CHECK(contains(refusal([&] { Tensor::zeros({1}).expand({-1, 1}); }), "expand"));
    CHECK(contains(refusal([&] { Tensor::zeros({1}).expand({-2}); }), "expand"));
    CHECK(contains(refusal([&] { Tensor::scalar(1).select(0, 0); }), "select"));
    CHECK(contains(refusal([&] { Tensor::scalar(1).transpose(0, 0); }), "0 dimensions"));
    CHECK(contains(refusal([&] { Tensor::scalar(1).tag_batch(); }), "scalar"));
}

TEST_CASE("views keep the batch tag exactly while dimension 0 is the batch, for any size") {
    for (const std::int64_t rows : {1, 2, 6}) {
        INFO(rows << " rows");
        const Tensor batch = Tensor::zeros({rows, 6, 2}).tag_batch();
        CHECK(batch.is_batch());
        CHECK_FALSE(batch.tag_batch(false).is_batch());
        CHECK(batch.detach().is_batch());
        CHECK(batch.clone().is_batch());
        CHECK(batch.to(DType::f64).is_batch());
        CHECK(batch.to(Device::cpu(0)).is_batch());
        CHECK(batch.flatten(1).is_batch());
        CHECK(batch.reshape({rows, 3, 4}).is_batch());
        CHECK(batch.transpose(1, 2).is_batch());
        CHECK(batch.transpose(1, 2).contiguous().is_batch());
        CHECK(batch.slice(1, 0, 3).is_batch());
        CHECK(batch.select(1, 0).is_batch());
        CHECK(batch.unsqueeze(1).is_batch());
        CHECK(batch.unsqueeze(1).squeeze(1).is_batch());
        CHECK(batch.unsqueeze(1).expand({rows, 3, 6, 2}).is_batch());
        CHECK_FALSE(batch.transpose(0, 1).is_batch());
        CHECK_FALSE(batch.slice(0, 0, 1).is_batch());
        CHECK_FALSE(batch.select(0, 0).is_batch());
        CHECK_FALSE(batch.unsqueeze(0).is_batch());
        CHECK_FALSE(batch.expand({2, rows, 6, 2}).is_batch());
        CHECK_FALSE(batch.select(2, 0).transpose(0, 1).is_batch());
    }
    const Tensor one = Tensor::zeros({1, 1, 5}).tag_batch();
    CHECK_FALSE(one.squeeze(0).is_batch());
    CHECK(one.squeeze(1).is_batch());
    CHECK_FALSE(one.expand({3, 1, 5}).is_batch());
    CHECK_FALSE(Tensor::zeros({2, 2}).reshape({4}).is_batch());
}
