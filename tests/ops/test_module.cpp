// Models as values: names, copies, ties.
#include <map>

#include "lockstep/ops/layers.h"
#include "lockstep/ops/module.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"

using namespace lockstep;

namespace {

struct Block {
    Linear first{3, 4}, second{3, 4, false};
    Dropout drop{0.5};
    LOCKSTEP_MEMBERS(first, second, drop)
};

/// Two tied weights, the second declared one first in `tie`.
struct Tied {
    Linear head{3, 4}, between{2, 2}, tail{3, 4};
    LOCKSTEP_MEMBERS(head, between, tail)
    Tied() { tie(tail.weight, head.weight); }
};

/// A tie between a member and an element of a vector.
struct Spread {
    std::vector<Block> blocks{Block(), Block()};
    Linear out{3, 4};
    LOCKSTEP_MEMBERS(blocks, out)
    Spread() { tie(blocks[1].first.weight, out.weight); }
};

/// One member of every possible kind.
struct Net {
    Conv2d conv{1, 2, 3};
    std::vector<Block> blocks{Block(), Block()};
    std::map<std::string, Linear> heads{{"a", Linear{2, 2}}, {"b", Linear{2, 2, false}}};
    std::array<ReLU, 2> acts;
    std::optional<Linear> absent;
    Sequential<Linear, ReLU, Dropout, BatchNorm2d> seq{Linear{2, 2}, ReLU{}, Dropout{}, BatchNorm2d{3}};
    LOCKSTEP_MEMBERS(conv, blocks, heads, acts, absent, seq)
};

struct Three {
    Linear a{3, 3, false}, b{3, 3, false}, c{3, 3, false};
    LOCKSTEP_MEMBERS(a, b, c)
    Three() {
        tie(a.weight, c.weight);
        tie(a.weight, b.weight);
    }
};

bool tied(const Tied& model) { return model.head.weight.identity() == model.tail.weight.identity(); }
bool tied(const Spread& model) { return model.blocks[1].first.weight.identity() == model.out.weight.identity(); }

std::vector<std::string> names(auto& model) {
    std::vector<std::string> list;
    for (const NamedTensor& tensor : named_tensors(model)) list.push_back(tensor.name);
    return list;
}

/// Two models share nothing.
void check_apart(auto& a, auto& b) {
    for (const NamedTensor& x : named_tensors(a))
        for (const NamedTensor& y : named_tensors(b)) {
            CHECK(x.member->identity() != y.member->identity());
            CHECK(x.member->tensor().impl() != y.member->tensor().impl());
        }
}

}  // namespace

TEST_CASE("parameters have PyTorch's names") {
    Net net;
    CHECK(names(net) ==
          std::vector<std::string>{"conv.weight", "conv.bias", "blocks.0.first.weight", "blocks.0.first.bias",
                                   "blocks.0.second.weight", "blocks.1.first.weight", "blocks.1.first.bias",
                                   "blocks.1.second.weight", "heads.a.weight", "heads.a.bias", "heads.b.weight",
                                   "seq.0.weight", "seq.0.bias", "seq.3.weight", "seq.3.bias", "seq.3.running_mean",
                                   "seq.3.running_var", "seq.3.num_batches_tracked"});
    int parameters = 0;
    for (const NamedTensor& tensor : named_tensors(net)) {
        parameters += tensor.is_parameter;
        CHECK(tensor.member->tensor().requires_grad() == tensor.is_parameter);
    }
    CHECK(parameters == 15);
    CHECK(training_modes(net) == "tttt");
    set_training(net, false);
    CHECK(training_modes(net) == "eeee");
    CHECK_FALSE(net.blocks[1].drop.training);
}

TEST_CASE("a copy of a model shares nothing with it") {
    Block a;
    a.second.weight->requires_grad_(false);
    Block b = a;
    check_apart(a, b);
    CHECK(b.first.weight->to_vector<float>() == a.first.weight->to_vector<float>());
    CHECK(b.first.weight->requires_grad());
    CHECK_FALSE(b.second.weight->requires_grad());
    const auto before = a.first.bias->tensor().to_vector<float>();
    {
        const Tensor raw = b.first.bias->tensor().detach();
        raw.fill_(3);
    }
    CHECK(a.first.bias->tensor().to_vector<float>() == before);
    Block c;
    c = a;
    check_apart(a, c);
    CHECK(c.first.weight->to_vector<float>() == a.first.weight->to_vector<float>());
}

TEST_CASE("tied parameters share one value and stay tied in copies") {
    Tied model;
    REQUIRE(tied(model));
    CHECK(model.head.weight.tensor().impl() == model.tail.weight.tensor().impl());

    SECTION("a copy, a copy of it, and two copies in a row") {
        Tied copy = model, other = model;
        Tied again = copy;
        for (Tied* m : {&copy, &other, &again}) CHECK(tied(*m));
        check_apart(model, copy);
        check_apart(copy, other);
        check_apart(copy, again);
        check_apart(other, again);
    }
    SECTION("assignment") {
        Tied target;
        target = model;
        CHECK(tied(target));
        check_apart(model, target);
        CHECK(target.head.weight->to_vector<float>() == model.head.weight->to_vector<float>());
        Tied& same = target;
        target = same;
        CHECK(tied(target));
    }
    SECTION("moves preserve the value") {
        const void* identity = model.head.weight.identity();
        Tied moved = std::move(model);
        CHECK(tied(moved));
        CHECK(moved.head.weight.identity() == identity);
        Tied target;
        target = std::move(moved);
        CHECK(tied(target));
        CHECK(target.tail.weight.identity() == identity);
        CHECK_THROWS_AS(moved.head.weight.tensor(), InvalidArgument);
    }
    SECTION("a vector of copies") {
        std::vector<Tied> list(3, model);
        list.push_back(model);
        std::vector<Tied> second = list;
        for (std::size_t i = 0; i < list.size(); ++i) {
            CHECK(tied(list[i]));
            CHECK(tied(second[i]));
            check_apart(list[i], model);
            check_apart(list[i], second[i]);
            for (std::size_t j = 0; j < i; ++j) check_apart(list[i], list[j]);
        }
    }
    SECTION("a single parameter copied in between") {
        Tied first = model;
        const Parameter alone = model.tail.weight;
        CHECK(alone->to_vector<float>() == model.tail.weight->to_vector<float>());
        Tied second = model;
        const Parameter head = model.head.weight;
        CHECK(head->requires_grad());
        Tied third = model;
        for (Tied* m : {&first, &second, &third}) {
            CHECK(tied(*m));
            CHECK(m->head.weight.identity() != alone.identity());
            CHECK(m->head.weight.identity() != head.identity());
        }
        CHECK(alone.identity() != head.identity());
    }
    SECTION("rebinding one rebinds the other") {
        const Tensor value = Tensor::zeros({4, 3});
        model.tail.weight.rebind(value);
        CHECK(model.head.weight.tensor().impl() == value.impl());
        CHECK_THROWS_AS(model.tail.weight.rebind(Tensor::zeros({3, 4})), InvalidArgument);
    }
}

TEST_CASE("ties between a member and an element of a vector are preserved") {
    Spread model;
    REQUIRE(tied(model));
    Spread copy = model, other = copy;
    CHECK(tied(copy));
    CHECK(tied(other));
    CHECK(copy.blocks[0].first.weight.identity() != copy.out.weight.identity());
    check_apart(model, copy);
    check_apart(copy, other);
    copy.blocks.push_back(copy.blocks[1]);
    CHECK(tied(copy));
    CHECK(copy.blocks[2].first.weight.identity() != copy.out.weight.identity());
    Spread grown = copy;
    CHECK(tied(grown));
}

TEST_CASE("three tied parameters share one value and add up its gradients") {
    Three model;
    Three copy = model;
    CHECK(copy.a.weight.identity() == copy.b.weight.identity());
    CHECK(copy.a.weight.identity() == copy.c.weight.identity());
    check_apart(model, copy);
    const Tensor x = Tensor::randn({2, 3});
    sum(copy.a(x) + copy.b(x)).backward();
    const auto both = copy.a.weight->grad().to_vector<float>();
    sum(model.a(x)).backward();
    const auto one = model.c.weight->grad().to_vector<float>();
    for (std::size_t i = 0; i < one.size(); ++i) CHECK(both[i] == Approx(2 * one[i]));
}

TEST_CASE("invalid ties and values are rejected") {
    Linear a{3, 4}, b{4, 3};
    CHECK_THROWS_AS(tie(a.weight, b.weight), InvalidArgument);
    CHECK_THROWS_AS(Parameter(Tensor()), InvalidArgument);
    CHECK_THROWS_AS(Parameter(Tensor::zeros({2}, DType::i64)), InvalidArgument);
    tie(a.weight, a.weight);
    CHECK(a.weight->requires_grad());
}

TEST_CASE("a module moves between devices and dtypes in place, with its gradients, ties and flags") {
    Tied model;
    model.between.weight->requires_grad_(false);
    const std::vector<float> values = model.head.weight->detach().to_vector<float>();
    sum(model.tail.forward(Tensor::full({2, 3}, 1))).backward();
    const std::vector<float> gradient = model.head.weight->grad().to_vector<float>();
    CHECK(&to(model, Device::cpu(1)) == &model);
    for (const NamedTensor& named : named_tensors(model)) {
        INFO(named.name);
        CHECK(named.member->tensor().device() == Device::cpu(1));
        CHECK(named.member->tensor().is_leaf());
        CHECK(named.member->tensor().requires_grad() == (named.name != "between.weight"));
    }
    CHECK(tied(model));
    CHECK(model.head.weight->detach().to_vector<float>() == values);
    CHECK(model.head.weight->grad().device() == Device::cpu(1));
    CHECK(model.head.weight->grad().to_vector<float>() == gradient);
    CHECK(model.tail.forward(Tensor::full({2, 3}, 1).to(Device::cpu(1))).device() == Device::cpu(1));
    const Tied copy = model;
    CHECK(copy.head.weight->device() == Device::cpu(1));  // a copy is on the device of the model

    const auto before = model.head.weight->impl();
    to(model, Device::cpu(1));
    CHECK(model.head.weight->impl() == before);
    to(model, DType::f64);
    CHECK(tied(model));
    CHECK(model.head.weight->detach().to_vector<double>() == std::vector<double>(values.begin(), values.end()));
    CHECK(model.head.weight->grad().dtype() == DType::f64);
    BatchNorm2d norm(3);
    to(norm, DType::f64);
    CHECK(norm.running_mean->tensor().dtype() == DType::f64);
    CHECK(norm.num_batches_tracked->tensor().dtype() == DType::i64);
    CHECK_THROWS_WITH(
        to(norm, DType::i32),
        "to: dtype i32 is not a floating dtype; expected DType::f32, DType::f64, DType::f16 or DType::bf16");
}

TEST_CASE("a module that an optimizer holds cannot be moved") {
    Tied model;
    const SGD sgd(model, {.lr = 0.1});
    CHECK_THROWS_WITH(to(model, Device::cpu(0)),
                      "to: the parameter head.weight belongs to a wrapper or an optimizer; expected a call before "
                      "these are created, or a copy of the model");
    CHECK(model.head.weight->device().is_host());
    Tied copy = model;
    CHECK(to(copy, Device::cpu(0)).head.weight->device() == Device::cpu(0));
}
