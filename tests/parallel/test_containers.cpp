// Containers as inputs, targets and outputs of a wrapper: const or not, empty or not, nested.
#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using lockstep::test::message_of;

namespace {

using Floats = std::vector<float>;
using Maybe = std::optional<Tensor>;

constexpr std::int64_t rows = 7;

/// Row r holds first + r.
Tensor counted(float first) {
    Floats values;
    for (std::int64_t r = 0; r < rows; ++r) values.push_back(first + static_cast<float>(r));
    return Tensor::from(values, {rows, 1});
}

/// Expected result of `weighted`: row r times the sum of the weights, and the sum of weight times first.
Floats expected(const std::vector<std::pair<float, float>>& weights_and_firsts) {
    Floats values;
    for (std::int64_t r = 0; r < rows; ++r) {
        float value = 0;
        for (const auto& [weight, first] : weights_and_firsts) value += weight * (first + static_cast<float>(r));
        values.push_back(value);
    }
    return values;
}

struct Scaled {
    Parameter scale{Tensor::full({1}, 1)};
    LOCKSTEP_MEMBERS(scale)
};

Tensor plus(const Maybe& sum, const Tensor& more) { return sum ? *sum + more : more; }

struct Flat : Scaled {
    Tensor forward(const std::vector<Tensor>& list, const std::map<std::string, Tensor>& named, const Maybe& maybe,
                   const std::array<Tensor, 2>& two, const std::pair<Tensor, double>& times) {
        Maybe sum;
        for (const Tensor& x : list) sum = plus(sum, x);
        for (const auto& [name, x] : named) sum = plus(sum, x * static_cast<double>(name.size()));
        if (maybe) sum = plus(sum, *maybe * 100.0);
        return (plus(plus(sum, two[0]), two[1] * 2.0) + times.first * times.second) * scale;
    }
};

using Deep = std::map<int, std::vector<std::tuple<Tensor, Maybe>>>;

struct Nested : Scaled {
    std::optional<Deep> forward(const std::optional<Deep>& deep) {
        std::optional<Deep> result = deep;
        if (result)
            for (auto& [number, list] : *result)
                for (auto& [x, maybe] : list) {
                    x = x * static_cast<double>(number) * scale;
                    if (maybe) maybe = *maybe * 2.0;
                }
        return result;
    }
};

struct Summed : Scaled {
    Tensor forward(const Maybe& maybe, const std::vector<Maybe>& list) {
        Tensor sum = maybe ? *maybe : Tensor::zeros({1});
        for (const Maybe& x : list)
            if (x) sum = sum + *x;
        return sum * scale;
    }
};

/// Squared error of the sum of the present tensors.
Loss against(const Tensor& output, const std::pair<Tensor, Maybe>& target) {
    return mse_loss(output, target.second ? target.first + *target.second : target.first);
}

}  // namespace

TEST_CASE("const and other containers of each kind are cut and reassembled in the same way") {
    DataParallel model(Flat{}, test::cpu_devices(3));
    std::vector<Tensor> list{counted(0), counted(10)};
    std::map<std::string, Tensor> named{{"a", counted(1)}, {"bcd", counted(2)}};
    Maybe maybe = counted(5);
    std::array<Tensor, 2> two{counted(3), counted(4)};
    std::pair<Tensor, double> times{counted(6), 0.5};
    const Floats all = expected({{1, 0}, {1, 10}, {1, 1}, {3, 2}, {100, 5}, {1, 3}, {2, 4}, {0.5, 6}});
    CHECK(model(list, named, maybe, two, times).to_vector<float>() == all);
    const auto const_list = list;
    const auto const_named = named;
    const Maybe const_maybe = maybe;
    const auto const_two = two;
    const auto const_times = times;
    const Tensor y = model(const_list, const_named, const_maybe, const_two, const_times);
    CHECK(y.to_vector<float>() == all);
    CHECK(model.engine().traces() == 2);  // shards of 3 rows and of 1: const or not is one program
    sum(y).backward();
    float total = 0;
    for (const float value : all) total += value;
    CHECK(model->scale->grad().to_vector<float>() == Floats{total});

    // Other content gives other programs.
    const Maybe nothing;
    list.clear();
    named.erase("bcd");
    CHECK(model(list, named, nothing, two, times).to_vector<float>() == expected({{1, 1}, {1, 3}, {2, 4}, {0.5, 6}}));
    CHECK(model.engine().traces() == 4);
    CHECK(model(const_list, named, nothing, two, times).to_vector<float>() ==
          expected({{1, 0}, {1, 10}, {1, 1}, {1, 3}, {2, 4}, {0.5, 6}}));
}

TEST_CASE("nested containers are returned with the same structure") {
    DataParallel model(Nested{}, test::cpu_devices(2));
    const std::optional<Deep> deep =
        Deep{{2, {{counted(0), counted(1)}, {counted(2), std::nullopt}}}, {-1, {}}, {3, {{counted(3), std::nullopt}}}};
    const auto check = [&](const std::optional<Deep>& result) {
        REQUIRE(result);
        REQUIRE(result->size() == 3);
        CHECK(result->at(-1).empty());
        REQUIRE(result->at(2).size() == 2);
        CHECK(std::get<0>(result->at(2)[0]).to_vector<float>() == expected({{2, 0}}));
        REQUIRE(std::get<1>(result->at(2)[0]));
        CHECK(std::get<1>(result->at(2)[0])->to_vector<float>() == expected({{2, 1}}));
        CHECK(std::get<0>(result->at(2)[1]).to_vector<float>() == expected({{2, 2}}));
        CHECK_FALSE(std::get<1>(result->at(2)[1]));
        CHECK(std::get<0>(result->at(3)[0]).to_vector<float>() == expected({{3, 3}}));
    };
    check(model(deep));
    {
        const NoGrad no_grad;
        std::optional<Deep> changeable = deep;
        check(model(changeable));
    }
    CHECK(message_of<InvalidArgument>([&] { (void)model(std::optional<Deep>()); }) ==
          "no tensor among the inputs; expected at least one");
}

TEST_CASE("a step accepts containers as input and as target") {
    // Scale s, sum x, target t: the loss is the mean of (s x - t)^2, its gradient the mean of 2 x (s x - t).
    for (const bool is_there : {true, false}) {
        DataParallel model(Summed{}, test::cpu_devices(3));
        SGD sgd(model, {.lr = 0.001});
        const Maybe maybe = is_there ? Maybe(counted(1)) : Maybe();
        const std::vector<Maybe> list{counted(2), std::nullopt, counted(3)};
        const std::tuple input{maybe, list};
        const std::pair<Tensor, Maybe> target{counted(4), is_there ? Maybe(counted(0)) : Maybe()};
        double scale = 1;
        for (int step = 0; step < 3; ++step) {
            double loss = 0, gradient = 0;
            for (int r = 0; r < rows; ++r) {
                const double x = (is_there ? 1 + r : 0) + (2 + r) + (3 + r), t = (4 + r) + (is_there ? r : 0);
                loss += (scale * x - t) * (scale * x - t) / static_cast<double>(rows);
                gradient += 2 * x * (scale * x - t) / static_cast<double>(rows);
            }
            CHECK(model.step(sgd, input, target, against).item() == Approx(loss).epsilon(1e-5));
            scale -= 0.001 * gradient;
        }
        CHECK(model->scale->detach().to_vector<float>()[0] == Approx(scale).epsilon(1e-5));
        CHECK(model.engine().traces() == 2);
    }
}

TEST_CASE("tensors of different batch sizes inside containers are rejected") {
    DataParallel model(Summed{}, test::cpu_devices(2));
    const Maybe maybe = Tensor::zeros({6, 1});
    CHECK(message_of<InvalidArgument>([&] {
              (void)model(maybe, std::vector<Maybe>{std::nullopt, counted(1)});
          }) == "batch sizes differ: input 0 has 6 rows, input 1 has 7; expected the same number");
}
