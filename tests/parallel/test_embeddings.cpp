// Networks with embeddings in steps: gradients on any number of devices, and indices out of range.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/ops/sgd.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/nets.h"

namespace ls = lockstep;
using namespace lockstep::test;

namespace {

constexpr std::int64_t rows = 10, words = 3, vocabulary = 7, features = 4;

/// The class of a row follows from its words: a bag of words, and the logit of one of them.
struct Words {
    ls::Embedding table{vocabulary, features, {.padding_idx = 0}};
    ls::Linear head{features, vocabulary};
    LOCKSTEP_MEMBERS(table, head)
    ls::Tensor forward(const ls::Tensor& text) {
        const ls::Tensor logits = head(ls::mean(table(text), {1}));
        return logits + ls::take_along_dim(logits, text.slice(1, 0, 1), 1);
    }
};

ls::Tensor text(std::int64_t special = 1) {
    std::vector<std::int64_t> values;
    for (std::int64_t i = 0; i < rows * words; ++i) values.push_back((i * i + 2 * i) % vocabulary);
    values[22] = special;  // in row 7
    return ls::Tensor::from(values, {rows, words});
}

ls::Tensor classes() {
    std::vector<std::int64_t> values;
    for (std::int64_t i = 0; i < rows; ++i) values.push_back(i % vocabulary);
    return ls::Tensor::from(values, {rows});
}

std::vector<float> trained(int devices, int shards) {
    ls::manual_seed(71);
    ls::DataParallel<Words> model(Words{}, cpu_devices(devices), {.shards = shards});
    ls::SGD sgd(model, {.lr = 0.5});
    for (int i = 0; i < 5; ++i) (void)model.step(sgd, text(), classes(), ls::cross_entropy).item();
    model.engine().verify_replicas();
    return model->table.weight->to_vector<float>();
}

}  // namespace

TEST_CASE("a step with an embedding changes the rows of its words, except the padding row") {
    ls::manual_seed(71);
    const std::vector<float> before = Words{}.table.weight->to_vector<float>();
    const std::vector<float> after = trained(1, 1);
    const std::vector<std::int64_t> used = text().to_vector<std::int64_t>();
    for (std::size_t i = 0; i < before.size(); ++i) {
        INFO("element " << i);
        const auto word = static_cast<std::int64_t>(i) / features;
        const bool trains = word != 0 && std::find(used.begin(), used.end(), word) != used.end();
        CHECK((before[i] != after[i]) == trains);
    }
    // One shard against plain modules with the same loss.
    ls::manual_seed(71);
    Words plain;
    ls::SGD sgd(plain, {.lr = 0.5});
    for (int i = 0; i < 5; ++i) {
        sgd.zero_grad();
        ls::cross_entropy(plain.forward(text()), classes()).value().backward();
        sgd.step();
    }
    const std::vector<float> expected = plain.table.weight->to_vector<float>();
    for (std::size_t i = 0; i < expected.size(); ++i) CHECK(std::abs(after[i] - expected[i]) < 1e-5F);
}

TEST_CASE("embeddings get the same bits on 1, 2, 3 and 8 devices") {
    const std::vector<float> one = trained(1, 8);
    for (const int devices : {2, 3, 8}) CHECK(trained(devices, 8) == one);
}

TEST_CASE("an index out of range refuses the step and names the row of the batch") {
    for (const int devices : {1, 3}) {
        ls::manual_seed(72);
        ls::DataParallel<Words> model(Words{}, cpu_devices(devices));
        ls::SGD sgd(model, {.lr = 0.5});
        const std::vector<float> before = model->table.weight->to_vector<float>();
        const ls::StepLoss loss = model.step(sgd, text(vocabulary), classes(), ls::cross_entropy);
        const std::string message = message_of<ls::StepError>([&] { (void)loss.item(); });
        INFO(message);
        CHECK(contains(message, "step 0: index 7 in row 7 of the batch is out of range (shard "));
        CHECK(contains(message, "; the step was not applied; expected 0 to (size of the dimension - 1)"));
        CHECK(model->table.weight->to_vector<float>() == before);
        (void)model.step(sgd, text(), classes(), ls::cross_entropy).item();
        CHECK(model->table.weight->to_vector<float>() != before);
    }
}

namespace {
/// The embedding of a number modulo another one.
struct Hashed {
    ls::Embedding table{5, 3};
    LOCKSTEP_MEMBERS(table)
    ls::Tensor forward(const ls::Tensor& x) { return table(ls::remainder(x.select(1, 0), x.select(1, 1))); }
};
}  // namespace

TEST_CASE("a divisor that is the integer 0 refuses the step and names the row of the batch") {
    std::vector<std::int64_t> numbers;
    for (std::int64_t row = 0; row < 9; ++row) {
        numbers.push_back(row * 7 - 20);
        numbers.push_back(row == 7 ? 0 : 1 + row % 5);
    }
    const ls::Tensor x = ls::Tensor::from(numbers, {9, 2}), target = ls::Tensor::zeros({9, 3});
    for (const int devices : {1, 3}) {
        ls::DataParallel<Hashed> model(Hashed{}, cpu_devices(devices));
        ls::SGD sgd(model, {.lr = 0.5});
        const std::vector<float> before = model->table.weight->to_vector<float>();
        const ls::StepLoss loss = model.step(sgd, x, target, ls::mse_loss);
        const std::string message = message_of<ls::StepError>([&] { (void)loss.item(); });
        INFO(message);
        CHECK(contains(message, "step 0: the divisor in row 7 of the batch is the integer 0 (shard "));
        CHECK(model->table.weight->to_vector<float>() == before);
    }
}

namespace {
struct Pairs {
    ls::Linear a{3, 4};
    int kind = 0;
    LOCKSTEP_MEMBERS(a)
    ls::Tensor forward(const ls::Tensor& x, const ls::Tensor& index) {
        const ls::Tensor y = a(x);
        if (kind == 0) return ls::gather(y, 1, index);
        if (kind == 1) return ls::gather(y, 1, ls::Tensor::zeros({2, 1}, ls::DType::i64));
        if (kind == 4) return ls::index_select(y, 0, ls::Tensor::zeros({1}, ls::DType::i64));
        if (kind == 5) return ls::flip(y, 0);
        if (kind == 6) return ls::scatter_add(y, 0, index, y);
        if (kind == 2) return ls::gather(ls::Tensor::zeros({8, 4}), 1, index) + ls::sum(y, {1}, true);
        return ls::scatter_add(ls::Tensor::zeros({8, 4}), 1, index, y);
    }
};
}  // namespace

TEST_CASE("a batch is not gathered with a tensor that every shard has in whole") {
    const ls::Tensor x = ls::Tensor::randn({4, 3}), index = ls::Tensor::zeros({4, 1}, ls::DType::i64);
    for (int kind = 0; kind < 7; ++kind) {
        Pairs pairs;
        pairs.kind = kind;
        ls::DataParallel<Pairs> model(pairs, cpu_devices(2));
        if (kind == 0) {
            CHECK(model(x, index).shape() == ls::Shape{4, 1});
            continue;
        }
        const std::string message = message_of<ls::InvalidArgument>([&] { (void)model(x, index); });
        INFO(message);
        if (kind >= 4) {
            const std::string name = kind == 4 ? "index_select" : kind == 5 ? "flip" : "scatter_add";
            CHECK(message ==
                  name + ": dimension 0 is the batch, of which a shard has only some rows; expected another dimension");
            continue;
        }
        CHECK(contains(message, kind == 1   ? "gather: the tensor is a batch and the index is not"
                                : kind == 2 ? "gather: the index is a batch and the tensor is not"
                                            : "scatter_add: the index is a batch and the tensor is not"));
    }
}
