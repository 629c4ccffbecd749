// The summary of a model against manual counts.
#include "lockstep/ops/summary.h"

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"

using namespace lockstep;

namespace {

/// Uses one layer twice and another one never.
struct Net {
    Conv2d conv{1, 2, 3};
    Sequential<BatchNorm2d, ReLU> head{BatchNorm2d(2), ReLU()};
    Dropout drop{0.5};
    Linear twice{18, 18}, never{5, 7};
    LOCKSTEP_MEMBERS(conv, head, drop, twice, never)

    Tensor forward(const Tensor& x) {
        Tensor y = max_pool2d(head(conv(x)), 2).flatten(1);
        return twice(drop(twice(y))) + y;
    }
};

struct TwoInputs {
    Linear layer{3, 4};
    LOCKSTEP_MEMBERS(layer)
    Tensor forward(const Tensor& x, const Tensor& scale) { return layer(x) * scale; }
};

/// Both names of one weight.
struct Tied {
    Linear first{3, 3, false}, second{3, 3, false};
    LOCKSTEP_MEMBERS(first, second)
    Tied() { tie(first.weight, second.weight); }
    Tensor forward(const Tensor& x) { return second(first(x)); }
};

struct Reads {
    Linear layer{3, 1};
    LOCKSTEP_MEMBERS(layer)
    Tensor forward(const Tensor& x) { return layer(x) * layer(x).item(); }
};

struct Line {
    std::string call, layer;
    Shape output;
    std::int64_t parameters;
    bool shared;
    bool operator==(const Line&) const = default;
};

std::vector<Line> lines_of(const ModelSummary& summary) {
    std::vector<Line> lines;
    for (const SummaryRow& row : summary.rows)
        lines.push_back({row.call, row.layer, row.output, row.parameters, row.shared});
    return lines;
}

}  // namespace

TEST_CASE("summary: calls in order, with their layers, outputs and parameters") {
    Net net;
    (*net.conv.bias)->requires_grad_(false);
    set_training(net, true);
    net.drop.training = false;
    const std::string modes = training_modes(net);
    const std::uint64_t version = (*std::get<0>(net.head.layers).running_mean)->version();
    const ModelSummary found = summary(net, Shape{2, 1, 8, 8});
    CHECK(lines_of(found) == std::vector<Line>{{"conv2d", "conv", {2, 2, 6, 6}, 2 * 9 + 2, false},
                                               {"batch_norm", "head.0", {2, 2, 6, 6}, 2 + 2, false},
                                               {"relu", "", {2, 2, 6, 6}, 0, false},
                                               {"max_pool2d", "", {2, 2, 3, 3}, 0, false},
                                               {"linear", "twice", {2, 18}, 18 * 18 + 18, false},
                                               {"linear", "twice", {2, 18}, 0, true},
                                               {"add", "", {2, 18}, 0, false}});
    CHECK(found.parameters == 20 + 4 + 342 + 42);
    CHECK(found.trainable == found.parameters - 2);
    CHECK(found.unused == std::vector<std::string>{"never.bias", "never.weight"});
    CHECK(found.parameter_bytes == 4 * 408);
    CHECK(found.buffer_bytes == 2 * 4 + 2 * 4 + 8);
    CHECK(found.input_bytes == 2 * 64 * 4);
    CHECK(found.result_bytes == 4 * (3 * 144 + 4 * 36));
    // The model is unchanged.
    CHECK(training_modes(net) == modes);
    CHECK((*std::get<0>(net.head.layers).running_mean)->version() == version);
}

TEST_CASE("summary: several inputs and dtypes, tied parameters, and a forward that reads values") {
    TwoInputs two;
    CHECK(lines_of(summary(two, Shape{5, 3}, Shape{5, 1})) ==
          std::vector<Line>{{"linear", "layer", {5, 4}, 16, false}, {"mul", "", {5, 4}, 0, false}});
    to(two, DType::f64);
    const ModelSummary wide = summary(two, SummaryInput({5, 3}, DType::f64), SummaryInput({5, 1}, DType::f64));
    CHECK(wide.input_bytes == 8 * 20);
    CHECK(wide.parameter_bytes == 8 * 16);
    CHECK(wide.result_bytes == 8 * 40);
    CHECK_THROWS_AS(summary(two, Shape{5, 3}, Shape{5, 1}), InvalidArgument);

    Tied tied;
    const ModelSummary once = summary(tied, Shape{1, 3});
    CHECK(once.parameters == 9);
    CHECK(once.rows.back().shared);
    CHECK(once.unused.empty());

    Net net;
    CHECK_THROWS_AS(summary(net, Shape{2, 3, 8, 8}), InvalidArgument);
    Reads reads;
    set_training(reads, true);
    CHECK_THROWS_AS(summary(reads, Shape{2, 3}), InvalidArgument);
}

TEST_CASE("summary: the table") {
    Tied tied;
    CHECK(summary(tied, Shape{256, 3}).str() ==
          "Call (layer)    Output    Parameters\n"
          "------------------------------------\n"
          "linear (first)  (256, 3)           9\n"
          "linear (first)  (256, 3)      shared\n"
          "------------------------------------\n"
          "Parameters: 9 (9 trainable), 0.00 MiB; buffers: 0.00 MiB\n"
          "Inputs: 0.00 MiB; results of forward: 0.01 MiB\n");
    Linear large(2000, 1000);
    const std::string text = summary(large, Shape{1, 2000}).str();
    CHECK(text.find("linear        (1, 1000)   2,001,000\n") != std::string::npos);
    CHECK(text.find("Parameters: 2,001,000 (2,001,000 trainable), 7.63 MiB") != std::string::npos);
}
