// Structs that list their members, as inputs, targets and outputs of a wrapper, and in scatter and gather.
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/functions.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using lockstep::test::message_of;

namespace {

using Floats = std::vector<float>;

constexpr std::int64_t rows = 7;

/// Row r holds first + r.
Tensor counted(float first) {
    Floats values;
    for (std::int64_t r = 0; r < rows; ++r) values.push_back(first + static_cast<float>(r));
    return Tensor::from(values, {rows, 1});
}

/// Row r holds factor * (first + r).
Floats scaled(float factor, float first) {
    Floats values;
    for (std::int64_t r = 0; r < rows; ++r) values.push_back(factor * (first + static_cast<float>(r)));
    return values;
}

/// Inputs of a model: whole tensors, or those of a loader.
template <class T = Tensor>
struct Frames {
    T left, right;
    double gain = 1;
    std::string note;  // not listed: not passed to forward
    LOCKSTEP_MEMBERS(left, right, gain)
};

/// A struct of sharded tensors, which has no corresponding struct of tensors.
struct Fixed {
    ShardedTensor x;
    LOCKSTEP_MEMBERS(x)
};

struct Scores {
    Tensor sum;
    std::vector<Tensor> parts;
    std::string name;
    LOCKSTEP_MEMBERS(sum, parts, name)
};

/// A struct inside of a struct.
struct Answer {
    Scores scores;
    Tensor doubled;
    LOCKSTEP_MEMBERS(scores, doubled)
};

struct Net {
    Parameter scale{Tensor::full({1}, 1)};
    LOCKSTEP_MEMBERS(scale)
    Answer forward(const Frames<>& in) {
        Answer out;
        out.scores.parts = {in.left * scale, in.right * in.gain};
        out.scores.sum = out.scores.parts[0] + out.scores.parts[1];
        out.scores.name = in.note + "sum";
        out.doubled = out.scores.sum * 2.0;
        return out;
    }
};

/// The loss gets the struct itself, and a struct of targets.
struct Wanted {
    Tensor sum;
    LOCKSTEP_MEMBERS(sum)
};
Loss against(const Answer& answer, const Wanted& wanted) { return mse_loss(answer.scores.sum, wanted.sum); }

void check(const Answer& answer, float gain) {
    CHECK(answer.scores.parts.size() == 2);
    CHECK(answer.scores.parts[0].to_vector<float>() == scaled(1, 10));
    CHECK(answer.scores.parts[1].to_vector<float>() == scaled(gain, 20));
    Floats sum = scaled(1, 10);
    const Floats more = scaled(gain, 20);
    for (std::size_t r = 0; r < sum.size(); ++r) sum[r] += more[r];
    CHECK(answer.scores.sum.to_vector<float>() == sum);
    for (float& value : sum) value *= 2;
    CHECK(answer.doubled.to_vector<float>() == sum);
    CHECK(answer.scores.name == "sum");
}

}  // namespace

TEST_CASE("structs are returned gathered, and their members other than tensors are part of the program's key") {
    DataParallel model(Net{}, test::cpu_devices(3));
    const Answer answer = model(Frames<>{counted(10), counted(20), 1, "unheard "});
    check(answer, 1);
    CHECK(answer.doubled.device() == Device::cpu(0));
    check(model(Frames<>{counted(10), counted(20), 1, "another "}), 1);
    CHECK(model.engine().traces() == 2);  // shards of 3 rows and of 1
    check(model(Frames<>{counted(10), counted(20), 0.5, ""}), 0.5f);
    CHECK(model.engine().traces() == 4);
    sum(answer.doubled).backward();
    float expected = 0;
    for (const float value : scaled(2, 10)) expected += value;
    CHECK(model->scale->grad().to_vector<float>() == Floats{expected});
}

TEST_CASE("a struct of sharded tensors is a struct of tensors inside forward") {
    DataParallel model(Net{}, test::cpu_devices(2));
    const BatchCut cut = cut_batch(rows, 2);
    const auto sharded = [&](const Tensor& whole) {
        return ShardedTensor(cut,
                             {whole.slice(0, 0, 4).to(Device::cpu(0)), whole.slice(0, 4, rows).to(Device::cpu(1))});
    };
    check(model(Frames<ShardedTensor>{sharded(counted(10)), sharded(counted(20)), 3, ""}), 3);
    check(model(std::vector<Frames<>>{{counted(10), counted(20), 1, ""}}[0]), 1);
}

TEST_CASE("a step accepts structs as input and target, and the loss receives the struct that forward returns") {
    DataParallel model(Net{}, test::cpu_devices(3));
    SGD sgd(model, {.lr = 0.001});
    double loss = 0, gradient = 0;
    for (int r = 0; r < static_cast<int>(rows); ++r) {
        const double left = 10 + r, right = 20 + r, wanted = 5 + r;
        loss += (left + right - wanted) * (left + right - wanted) / static_cast<double>(rows);
        gradient += 2 * left * (left + right - wanted) / static_cast<double>(rows);
    }
    const Frames<> in{counted(10), counted(20), 1, ""};
    CHECK(model.step(sgd, in, Wanted{counted(5)}, against).item() == Approx(loss).epsilon(1e-6));
    CHECK(model->scale->detach().to_vector<float>()[0] == Approx(1 - 0.001 * gradient).epsilon(1e-5));
}

TEST_CASE("scatter and gather take structs apart and report differences") {
    const std::vector<Frames<>> parts = scatter(Frames<>{counted(10), counted(20), 2, ""}, test::cpu_devices(3));
    REQUIRE(parts.size() == 3);
    CHECK(parts[2].left.to_vector<float>() == Floats{16});
    CHECK(parts[1].right.device() == Device::cpu(1));
    CHECK(parts[1].gain == 2);
    const Frames<> whole = gather(parts, Device::host());
    CHECK(whole.left.to_vector<float>() == scaled(1, 10));
    CHECK(whole.right.to_vector<float>() == scaled(1, 20));
    std::vector<Frames<>> others = parts;
    others[1].gain = 3;
    CHECK(message_of<InvalidArgument>([&] { (void)gather(others, Device::host()); }) ==
          "gather: output 1 has a different value, which is not a tensor and cannot be gathered; expected the same "
          "structure from all replicas");
}

TEST_CASE("members without tensors may have any comparable type") {
    struct Plain {
        int a = 1;
        float b = 2;
    };
    CHECK(structure::walkable<std::tuple<int, std::string, Plain, std::vector<bool>>>);
    CHECK(structure::walkable<std::tuple<const Frames<>&, const std::vector<Tensor>&>>);
    CHECK_FALSE(structure::walkable<std::shared_ptr<Tensor>>);
    struct Hidden {
        Tensor x;
    };
    CHECK_FALSE(structure::walkable<Hidden>);
    CHECK_FALSE(structure::walkable<std::vector<std::optional<Hidden>>>);
    CHECK_FALSE(structure::walkable<Fixed>);  // forward could not accept it
}
