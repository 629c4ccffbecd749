// Training of a network as plain loops in double: forward, backward and SGD with momentum, a batch cut in shards like
// torch.chunk cuts. Reference for the parameters of DataParallel.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/runtime/random.h"
#include "lockstep/tests/reference/conv.h"

namespace lockstep::reference {

using Values = std::vector<double>;

struct Weight {
    Values value, gradient, momentum;
    bool has_momentum = false;
};

/// Rows of a batch that one shard computes.
struct ShardRows {
    std::ptrdiff_t first = 0, count = 0;
    StepCounters state;  ///< key of the masks
};

class Layer {
public:
    virtual ~Layer() = default;
    virtual Values forward(const Values& x, const ShardRows& rows) = 0;
    /// Backward of the last forward; adds to the gradients of its weights.
    virtual Values backward(const Values& dy) = 0;
    /// After all shards of a step.
    virtual void finish() {}
};

/// Convolution without padding, stride 1; x (rows, c, h, w).
class ConvLayer final : public Layer {
public:
    ConvLayer(Weight& weight, Weight& bias, std::ptrdiff_t c, std::ptrdiff_t side, std::ptrdiff_t k,
              std::ptrdiff_t window)
        : weight_(weight), bias_(bias), shape_{0, c, side, side, k, window, window, 1, 0} {}
    Values forward(const Values& x, const ShardRows& rows) override {
        x_ = x;
        shape_.n = rows.count;
        Values y(static_cast<std::size_t>(shape_.y_size()));
        for (std::size_t i = 0; i < y.size(); ++i) y[i] = bias_.value[channel(i)];
        for_each_product(shape_, [&](std::ptrdiff_t ix, std::ptrdiff_t iw, std::ptrdiff_t iy) {
            y[static_cast<std::size_t>(iy)] +=
                x[static_cast<std::size_t>(ix)] * weight_.value[static_cast<std::size_t>(iw)];
        });
        return y;
    }
    Values backward(const Values& dy) override {
        Values dx(x_.size());
        for_each_product(shape_, [&](std::ptrdiff_t ix, std::ptrdiff_t iw, std::ptrdiff_t iy) {
            const double d = dy[static_cast<std::size_t>(iy)];
            dx[static_cast<std::size_t>(ix)] += d * weight_.value[static_cast<std::size_t>(iw)];
            weight_.gradient[static_cast<std::size_t>(iw)] += d * x_[static_cast<std::size_t>(ix)];
        });
        for (std::size_t i = 0; i < dy.size(); ++i) bias_.gradient[channel(i)] += dy[i];
        return dx;
    }

private:
    std::size_t channel(std::size_t i) const {
        return i / static_cast<std::size_t>(shape_.out_h() * shape_.out_w()) % static_cast<std::size_t>(shape_.k);
    }
    Weight &weight_, &bias_;
    ConvShape shape_;
    Values x_;
};

/// 2x2 windows, stride 2; the first largest element takes the gradient.
class PoolLayer final : public Layer {
public:
    explicit PoolLayer(std::size_t side) : side_(side) {}
    Values forward(const Values& x, const ShardRows&) override {
        const std::size_t out = side_ / 2, planes = x.size() / (side_ * side_);
        size_ = x.size();
        from_.assign(planes * out * out, 0);
        Values y(from_.size());
        for (std::size_t i = 0; i < y.size(); ++i) {
            const std::size_t start = (i / (out * out) * side_ + i / out % out * 2) * side_ + i % out * 2;
            from_[i] = start;
            for (const std::size_t at : {start + 1, start + side_, start + side_ + 1})
                if (x[at] > x[from_[i]]) from_[i] = at;
            y[i] = x[from_[i]];
        }
        return y;
    }
    Values backward(const Values& dy) override {
        Values dx(size_);
        for (std::size_t i = 0; i < dy.size(); ++i) dx[from_[i]] += dy[i];
        return dx;
    }

private:
    std::size_t side_, size_ = 0;
    std::vector<std::size_t> from_;
};

class ReluLayer final : public Layer {
public:
    Values forward(const Values& x, const ShardRows&) override {
        y_ = x;
        for (double& value : y_) value = value > 0 ? value : 0;
        return y_;
    }
    Values backward(const Values& dy) override {
        Values dx = dy;
        for (std::size_t i = 0; i < dx.size(); ++i)
            if (!(y_[i] > 0)) dx[i] = 0;
        return dx;
    }

private:
    Values y_;
};

/// Dropout with the masks of the contract: the counter of an element is its row in the batch times the mask's row size
/// plus its place in the row. `repeat`: elements that share one mask element (a channel, for Dropout2d).
class DropoutLayer final : public Layer {
public:
    DropoutLayer(std::uint32_t ordinal, double p, std::size_t row_size, std::size_t repeat)
        : ordinal_(ordinal), p_(p), row_size_(row_size), repeat_(repeat) {}
    Values forward(const Values& x, const ShardRows& rows) override {
        mask_.assign(x.size(), 0);
        for (std::size_t i = 0; i < x.size(); ++i) {
            const std::uint64_t counter = static_cast<std::uint64_t>(rows.first) * row_size_ + i / repeat_;
            const double uniform = static_cast<double>(random_bits(rows.state, ordinal_, counter) >> 8) / 16777216.0;
            mask_[i] = uniform < p_ ? 0 : 1 / (1 - p_);
        }
        return backward(x);
    }
    Values backward(const Values& dy) override {
        Values dx = dy;
        for (std::size_t i = 0; i < dx.size(); ++i) dx[i] *= mask_[i];
        return dx;
    }

private:
    std::uint32_t ordinal_;
    double p_;
    std::size_t row_size_, repeat_;
    Values mask_;
};

class LinearLayer final : public Layer {
public:
    LinearLayer(Weight& weight, Weight& bias, std::size_t in, std::size_t out)
        : weight_(weight), bias_(bias), in_(in), out_(out) {}
    Values forward(const Values& x, const ShardRows& rows) override {
        x_ = x;
        Values y(static_cast<std::size_t>(rows.count) * out_);
        for (std::size_t i = 0; i < y.size(); ++i) {
            y[i] = bias_.value[i % out_];
            for (std::size_t j = 0; j < in_; ++j) y[i] += x[i / out_ * in_ + j] * weight_.value[i % out_ * in_ + j];
        }
        return y;
    }
    Values backward(const Values& dy) override {
        Values dx(x_.size());
        for (std::size_t i = 0; i < dy.size(); ++i) {
            bias_.gradient[i % out_] += dy[i];
            for (std::size_t j = 0; j < in_; ++j) {
                dx[i / out_ * in_ + j] += dy[i] * weight_.value[i % out_ * in_ + j];
                weight_.gradient[i % out_ * in_ + j] += dy[i] * x_[i / out_ * in_ + j];
            }
        }
        return dx;
    }

private:
    Weight &weight_, &bias_;
    std::size_t in_, out_;
    Values x_;
};

/// Batch normalisation with the statistics of each shard; the running ones move once a step, by those of all rows.
class BatchNormLayer final : public Layer {
public:
    BatchNormLayer(Weight& weight, Weight& bias, std::size_t channels, std::size_t plane)
        : running_mean(channels, 0), running_var(channels, 1), weight_(weight), bias_(bias), plane_(plane) {}
    Values running_mean, running_var;

    Values forward(const Values& x, const ShardRows&) override {
        const std::size_t channels = running_mean.size();
        all_.insert(all_.end(), x.begin(), x.end());
        moments(x, mean_, inverse_);
        for (double& value : inverse_) value = 1 / std::sqrt(value / count(x) + 1e-5);
        normal_.resize(x.size());
        Values y(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) {
            const std::size_t c = i / plane_ % channels;
            normal_[i] = (x[i] - mean_[c]) * inverse_[c];
            y[i] = normal_[i] * weight_.value[c] + bias_.value[c];
        }
        return y;
    }
    Values backward(const Values& dy) override {
        const std::size_t channels = running_mean.size();
        Values sum(channels), product(channels);
        for (std::size_t i = 0; i < dy.size(); ++i) {
            sum[i / plane_ % channels] += dy[i];
            product[i / plane_ % channels] += dy[i] * normal_[i];
        }
        Values dx(dy.size());
        for (std::size_t i = 0; i < dy.size(); ++i) {
            const std::size_t c = i / plane_ % channels;
            dx[i] = weight_.value[c] * inverse_[c] * (dy[i] - sum[c] / count(dy) - normal_[i] * product[c] / count(dy));
        }
        for (std::size_t c = 0; c < channels; ++c) {
            bias_.gradient[c] += sum[c];
            weight_.gradient[c] += product[c];
        }
        return dx;
    }
    void finish() override {
        Values mean, m2;
        moments(all_, mean, m2);
        for (std::size_t c = 0; c < mean.size(); ++c) {
            running_mean[c] = 0.9 * running_mean[c] + 0.1 * mean[c];
            running_var[c] = 0.9 * running_var[c] + 0.1 * m2[c] / (count(all_) - 1);
        }
        all_.clear();
    }

private:
    double count(const Values& x) const { return static_cast<double>(x.size() / running_mean.size()); }
    void moments(const Values& x, Values& mean, Values& m2) const {
        const std::size_t channels = running_mean.size();
        mean.assign(channels, 0);
        m2.assign(channels, 0);
        for (std::size_t i = 0; i < x.size(); ++i) mean[i / plane_ % channels] += x[i] / count(x);
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double delta = x[i] - mean[i / plane_ % channels];
            m2[i / plane_ % channels] += delta * delta;
        }
    }
    Weight &weight_, &bias_;
    std::size_t plane_;
    Values all_, mean_, inverse_, normal_;
};

/// Layers one after another, then log-softmax over `classes` and the mean negative log likelihood of the batch.
class Network {
public:
    std::map<std::string, Weight> weights;
    std::vector<std::unique_ptr<Layer>> layers;

    explicit Network(std::size_t classes) : classes_(classes) {}
    template <class L, class... Arguments>
    L& add(Arguments&&... arguments) {
        auto layer = std::make_unique<L>(std::forward<Arguments>(arguments)...);
        L& result = *layer;
        layers.push_back(std::move(layer));
        return result;
    }
    /// A layer with the weights `name`.weight and `name`.bias.
    template <class L, class... Arguments>
    L& add_weighted(const std::string& name, Arguments&&... arguments) {
        return add<L>(weights[name + ".weight"], weights[name + ".bias"], std::forward<Arguments>(arguments)...);
    }

    /// One step of SGD on x (rows, ...) cut in `shards` shards.
    void step(const Values& x, const std::vector<std::int64_t>& labels, std::ptrdiff_t shards,
              const StepCounters& state, double lr, double momentum) {
        for (auto& [name, weight] : weights) weight.gradient.assign(weight.value.size(), 0);
        const auto rows = static_cast<std::ptrdiff_t>(labels.size());
        const std::ptrdiff_t chunk = (rows + shards - 1) / shards;
        const std::ptrdiff_t row_size = static_cast<std::ptrdiff_t>(x.size()) / rows;
        for (std::ptrdiff_t first = 0; first < rows; first += chunk) {
            const ShardRows shard{first, std::min(chunk, rows - first), state};
            Values y(x.begin() + first * row_size, x.begin() + (first + shard.count) * row_size);
            for (const auto& layer : layers) y = layer->forward(y, shard);
            Values dy = loss_gradient(y, labels, first);
            for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) dy = (*layer)->backward(dy);
        }
        for (const auto& layer : layers) layer->finish();
        for (auto& [name, weight] : weights) {
            weight.momentum.resize(weight.value.size());
            for (std::size_t i = 0; i < weight.value.size(); ++i) {
                weight.momentum[i] = (weight.has_momentum ? momentum * weight.momentum[i] : 0) + weight.gradient[i];
                weight.value[i] -= lr * weight.momentum[i];
            }
            weight.has_momentum = true;
        }
    }

private:
    /// Gradient of the mean loss over the batch with respect to the inputs of log-softmax.
    Values loss_gradient(const Values& logits, const std::vector<std::int64_t>& labels, std::ptrdiff_t first) const {
        Values gradient(logits.size());
        for (std::size_t row = 0; row < logits.size() / classes_; ++row) {
            double sum = 0;
            for (std::size_t c = 0; c < classes_; ++c) sum += std::exp(logits[row * classes_ + c]);
            const auto label = static_cast<std::size_t>(labels[static_cast<std::size_t>(first) + row]);
            for (std::size_t c = 0; c < classes_; ++c)
                gradient[row * classes_ + c] = (std::exp(logits[row * classes_ + c]) / sum - (c == label ? 1 : 0)) /
                                               static_cast<double>(labels.size());
        }
        return gradient;
    }
    std::size_t classes_;
};

}  // namespace lockstep::reference
