// Losses of masks on shards: cross-entropy of maps together with dice, whose value and gradients are those of the whole
// batch, computed here in double precision.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/ops/dice.h"
#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"

using namespace lockstep;

namespace {

constexpr std::int64_t channels = 2, classes = 3, height = 4, width = 5, positions = height * width;
constexpr std::size_t parameters = classes * channels + classes;

struct Net {
    Conv2d conv{channels, classes, 1};
    LOCKSTEP_MEMBERS(conv)
    Tensor forward(const Tensor& x) { return conv(x); }
};

struct Data {
    Tensor x, masks;
    std::vector<double> xs;
    std::vector<std::int64_t> numbers;
    std::int64_t rows;

    explicit Data(std::int64_t n) : x(Tensor::randn({n, channels, height, width})), rows(n) {
        for (const float value : x.to_vector<float>()) xs.push_back(value);
        // Masks whose classes are rare in some images and absent in others.
        for (std::int64_t i = 0; i < n * positions; ++i)
            numbers.push_back(i % 7 == 0 && i / positions % 2 == 0 ? 2 : (i % 3 == 0 ? 1 : 0));
        masks = Tensor::from(numbers, {n, height, width});
    }
};

/// Softmax of the network's output for image n at position i.
std::vector<double> probabilities(const std::vector<double>& w, const Data& data, std::int64_t n, std::int64_t i) {
    std::vector<double> p;
    double total = 0;
    for (std::int64_t c = 0; c < classes; ++c) {
        double logit = w[static_cast<std::size_t>(classes * channels + c)];
        for (std::int64_t k = 0; k < channels; ++k)
            logit += w[static_cast<std::size_t>(c * channels + k)] *
                     data.xs[static_cast<std::size_t>((n * channels + k) * positions + i)];
        p.push_back(std::exp(logit));
        total += p.back();
    }
    for (double& value : p) value /= total;
    return p;
}

std::size_t class_at(const Data& data, std::int64_t n, std::int64_t i) {
    return static_cast<std::size_t>(data.numbers[static_cast<std::size_t>(n * positions + i)]);
}

/// Cross entropy, -log p of every position: their mean, or weighted by class.
double cross_entropy_of(const std::vector<double>& w, const Data& data, const std::vector<double>& weights) {
    double sum = 0, count = 0;
    for (std::int64_t n = 0; n < data.rows; ++n)
        for (std::int64_t i = 0; i < positions; ++i) {
            const std::size_t c = class_at(data, n, i);
            sum -= weights[c] * std::log(probabilities(w, data, n, i)[c]);
            count += weights[c];
        }
    return sum / count;
}

/// 1 - dice of images [begin, end), averaged over classes from `first` on.
double dice_of(const std::vector<double>& w, const Data& data, std::int64_t begin, std::int64_t end,
               std::size_t first) {
    std::vector<double> common(classes), both(classes);
    for (std::int64_t n = begin; n < end; ++n)
        for (std::int64_t i = 0; i < positions; ++i) {
            const std::vector<double> p = probabilities(w, data, n, i);
            for (std::size_t c = 0; c < classes; ++c) {
                const double is = class_at(data, n, i) == c ? 1 : 0;
                common[c] += p[c] * is;
                both[c] += p[c] + is;
            }
        }
    double dice = 0;
    for (std::size_t c = first; c < classes; ++c)
        dice += (2 * common[c] + 1e-6) / (both[c] + 1e-6) / static_cast<double>(classes - first);
    return 1 - dice;
}

/// The mean of dice_of over groups of this many images, each weighted by its number of images.
double dice_of_groups(const std::vector<double>& w, const Data& data, std::int64_t images, std::size_t first) {
    double sum = 0;
    for (std::int64_t n = 0; n < data.rows; n += images) {
        const std::int64_t end = std::min(data.rows, n + images);
        sum += static_cast<double>(end - n) * dice_of(w, data, n, end, first);
    }
    return sum / static_cast<double>(data.rows);
}

using Function = std::function<double(const std::vector<double>&)>;

struct Found {
    double loss = 0;
    std::vector<double> gradient;
};

std::vector<double> values(const Net& net) {
    std::vector<double> w;
    for (const Tensor& tensor : {net.conv.weight.tensor(), net.conv.bias->tensor()})
        for (const float value : tensor.detach().to_vector<float>()) w.push_back(value);
    return w;
}

Found expected(const Net& net, const Function& loss) {
    std::vector<double> w = values(net);
    Found result{loss(w), {}};
    for (double& at : w) {
        constexpr double step = 1e-5;
        const double middle = at;
        at = middle + step;
        const double above = loss(w);
        at = middle - step;
        result.gradient.push_back((above - loss(w)) / (2 * step));
        at = middle;
    }
    return result;
}

/// Loss and gradient of one step, derived from the weights: the rate is so large that their own digits do not matter.
template <class Loss>
Found one_step(const Net& net, int shards, const Data& data, const Loss& loss, const StepOptions& how = {}) {
    constexpr double rate = 1 << 20;
    DataParallel<Net> model(net, test::cpu_devices(shards));
    SGD sgd(model, {.lr = rate});
    const std::vector<double> before = values(*model);
    Found found{model.step(sgd, data.x, data.masks, loss, how).item(), {}};
    const std::vector<double> after = values(*model);
    for (std::size_t i = 0; i < parameters; ++i) found.gradient.push_back((before[i] - after[i]) / rate);
    return found;
}

void check(const Found& found, const Found& wanted) {
    CHECK(found.loss == Approx(wanted.loss).epsilon(2e-6));
    REQUIRE(found.gradient.size() == wanted.gradient.size());
    for (std::size_t i = 0; i < parameters; ++i)
        CHECK(found.gradient[i] == Approx(wanted.gradient[i]).epsilon(2e-5).margin(2e-6));
}

}  // namespace

TEST_CASE("cross entropy and dice of the batch are those of one device, for any number of shards") {
    manual_seed(61);
    const Net net;
    const std::vector<double> even{1, 1, 1}, uneven{0.5, 2, 1.5};
    const Tensor weight = Tensor::from(std::vector<float>(uneven.begin(), uneven.end()), {classes});
    const auto both = [](const Tensor& logits, const Tensor& masks) {
        return cross_entropy(logits, masks) + dice_loss(softmax(logits, 1), masks);
    };
    const auto weighted = [&](const Tensor& logits, const Tensor& masks) {
        return 0.5 * CrossEntropyLoss{{.weight = weight}}(logits, masks) +
               2 * DiceLoss{{.include_background = false}}(softmax(logits, 1), masks);
    };
    for (const std::int64_t rows : {4, 7}) {
        const Data data(rows);
        const Found wanted = expected(net, [&](const std::vector<double>& w) {
            return cross_entropy_of(w, data, even) + dice_of(w, data, 0, rows, 0);
        });
        const Found wanted_weighted = expected(net, [&](const std::vector<double>& w) {
            return 0.5 * cross_entropy_of(w, data, uneven) + 2 * dice_of(w, data, 0, rows, 1);
        });
        for (const int shards : {1, 2, 4}) {
            INFO(rows << " rows on " << shards << " shards");
            check(one_step(net, shards, data, both), wanted);
            check(one_step(net, shards, data, weighted), wanted_weighted);
        }
    }
}

TEST_CASE("dice of all classes together, with ignored positions, for any number of shards") {
    const auto pooled = [](const std::vector<double>& w, const Data& data, std::size_t first, std::int64_t ignored) {
        double common = 0, both = 0;
        for (std::int64_t n = 0; n < data.rows; ++n)
            for (std::int64_t i = 0; i < positions; ++i) {
                const std::size_t truth = class_at(data, n, i);
                if (static_cast<std::int64_t>(truth) == ignored) continue;
                const std::vector<double> p = probabilities(w, data, n, i);
                for (std::size_t c = first; c < classes; ++c) {
                    common += truth == c ? p[c] : 0;
                    both += p[c] + (truth == c ? 1 : 0);
                }
            }
        return 1 - (2 * common + 1e-6) / (both + 1e-6);
    };
    const auto kept_entropy = [](const std::vector<double>& w, const Data& data, std::int64_t ignored) {
        double sum = 0, count = 0;
        for (std::int64_t n = 0; n < data.rows; ++n)
            for (std::int64_t i = 0; i < positions; ++i) {
                const std::size_t truth = class_at(data, n, i);
                if (static_cast<std::int64_t>(truth) == ignored) continue;
                sum -= std::log(probabilities(w, data, n, i)[truth]);
                ++count;
            }
        return sum / count;
    };
    manual_seed(21);
    const Net net;
    const Data data(7);
    for (const int shards : {1, 3}) {
        CAPTURE(shards);
        check(one_step(net, shards, data,
                       [](const Tensor& logits, const Tensor& masks) {
                           return DiceLoss{{.pool_classes = true}}(softmax(logits, 1), masks);
                       }),
              expected(net, [&](const std::vector<double>& w) { return pooled(w, data, 0, -1); }));
        check(one_step(net, shards, data,
                       [](const Tensor& logits, const Tensor& masks) {
                           return DiceLoss{{.include_background = false, .ignore_index = 2, .pool_classes = true}}(
                                      softmax(logits, 1), masks) +
                                  CrossEntropyLoss{{.ignore_index = 2}}(logits, masks);
                       }),
              expected(net,
                       [&](const std::vector<double>& w) { return pooled(w, data, 1, 2) + kept_entropy(w, data, 2); }));
    }
    // An ignored class out of range, and one that is not ignored.
    const Tensor probabilities_of_two = Tensor::full({1, 2, 1, 4}, 0.5);
    const Tensor masks = Tensor::from(std::vector<std::int64_t>{0, 1, -100, 1}, {1, 1, 4});
    CHECK(DiceLoss{{.epsilon = 0, .ignore_index = -100}}(probabilities_of_two, masks).item() ==
          Approx(1 - (2 * 0.5 / 2.5 + 2 * 1 / 3.5) / 2));
    CHECK_THROWS_AS(DiceLoss{{.ignore_index = -99}}(probabilities_of_two, masks).item(), InvalidArgument);
    CHECK_THROWS_AS((DiceLoss{{.ignore_index = 0}}(probabilities_of_two, probabilities_of_two)), InvalidArgument);
    // The same for a score: class 1 is predicted everywhere.
    const Tensor logits = Tensor::from(std::vector<float>{0, 0, 0, 0, 1, 1, 1, 1}, {1, 2, 1, 4});
    CHECK(dice_score(logits, masks, 1e-6, -100).item() == Approx(2 * 2 / 5.0));
}

TEST_CASE("dice of each image and of each shard") {
    manual_seed(62);
    const Net net;
    const Data data(7);
    const auto of = [](DiceOver over) {
        return
            [over](const Tensor& logits, const Tensor& masks) { return DiceLoss{{over}}(softmax(logits, 1), masks); };
    };
    const auto groups = [&](std::int64_t images) {
        return expected(net, [&](const std::vector<double>& w) { return dice_of_groups(w, data, images, 0); });
    };
    const Found images = groups(1);
    for (const int shards : {1, 2, 4}) {
        INFO(shards << " shards");
        check(one_step(net, shards, data, of(DiceOver::image)), images);
        check(one_step(net, shards, data, of(DiceOver::image), {.accumulation_steps = 2}), images);
        check(one_step(net, shards, data, of(DiceOver::shard)), groups((7 + shards - 1) / shards));
    }
}

TEST_CASE("with microbatches, the dice of the batch is the mean of theirs, weighted by rows") {
    manual_seed(63);
    const Net net;
    const Data data(6);
    // One shard, three microbatches of two rows.
    const Found wanted = expected(net, [&](const std::vector<double>& w) { return dice_of_groups(w, data, 2, 0); });
    check(one_step(net, 1, data,
                   [](const Tensor& logits, const Tensor& masks) { return dice_loss(softmax(logits, 1), masks); },
                   {.accumulation_steps = 3}),
          wanted);
}

TEST_CASE("a target out of range in a dice loss refuses the step") {
    manual_seed(64);
    Data data(4);
    data.numbers[2 * positions + 3] = classes;
    data.masks = Tensor::from(data.numbers, {4, height, width});
    DataParallel<Net> model(Net{}, test::cpu_devices(2));
    SGD sgd(model, {.lr = 0.1});
    const std::vector<double> before = values(*model);
    try {
        (void)model
            .step(sgd, data.x, data.masks,
                  [](const Tensor& logits, const Tensor& masks) { return dice_loss(softmax(logits, 1), masks); })
            .item();
        FAIL("not refused");
    } catch (const StepError& error) {
        INFO(error.what());
        CHECK(std::string(error.what()).find("target 3 in row 2") != std::string::npos);
    }
    CHECK(values(*model) == before);
}
