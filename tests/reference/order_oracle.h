// Order of a log by brute force, independently of OrderChecker: the graph of the entries, its transitive closure as
// bit sets, and every pair of entries that touch one byte, one of them writing.
//
// Edges: an entry follows the previous one of its stream; it follows the latest entry of the host before it (the host
// enqueued it); a wait follows the latest record of its event; a wait for a stream follows that stream's latest entry.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/runtime/order_checker.h"

namespace lockstep::reference {

/// One row of bits per entry, for entries before it.
class BitMatrix {
public:
    explicit BitMatrix(std::size_t n) : words_((n + 63) / 64), bits_(n * words_) {}
    std::uint64_t* row(std::size_t i) { return bits_.data() + i * words_; }
    const std::uint64_t* row(std::size_t i) const { return bits_.data() + i * words_; }
    void set(std::size_t i, std::size_t j) { row(i)[j / 64] |= std::uint64_t{1} << (j % 64); }
    /// Words of a row that hold bits of entries before `i`.
    static std::size_t words_before(std::size_t i) { return (i + 63) / 64; }

private:
    std::size_t words_;
    std::vector<std::uint64_t> bits_;
};

struct UnorderedPair {
    std::size_t earlier = 0, later = 0;
    bool operator==(const UnorderedPair&) const = default;
};

class OrderOracle {
public:
    explicit OrderOracle(std::vector<OrderEntry> log)
        : log_(std::move(log)), conflicts_(log_.size()), before_(log_.size()), edges_(log_.size()) {
        find_conflicts();
        find_edges();
        close(0);
    }

    std::size_t size() const { return log_.size(); }
    const OrderEntry& entry(std::size_t i) const { return log_[i]; }

    /// All conflicting pairs without order: by `later`, then by `earlier`.
    std::vector<UnorderedPair> unordered_pairs() const {
        std::vector<UnorderedPair> pairs;
        for (std::size_t later = 0; later < size(); ++later)
            for (std::size_t word = 0; word < BitMatrix::words_before(later); ++word)
                for (std::uint64_t bits = missing(later, word); bits != 0; bits &= bits - 1)
                    pairs.push_back({word * 64 + static_cast<std::size_t>(std::countr_zero(bits)), later});
        return pairs;
    }

    /// The first entry at or after `from` that conflicts without order, with the latest one it conflicts with.
    std::optional<UnorderedPair> first_unordered(std::size_t from = 0) const {
        for (std::size_t later = from; later < size(); ++later)
            if (const auto earlier = latest_missing(later)) return UnorderedPair{*earlier, later};
        return std::nullopt;
    }

    /// Result of first_unordered without the wait at `position`. The log up to that position must be in order.
    std::optional<UnorderedPair> first_unordered_without(std::size_t position) {
        if (waited_[position] != none) edges_[position].pop_back();
        std::optional<UnorderedPair> found;
        std::size_t end = position;
        for (; end < size() && !found; ++end) {
            close_row(end);
            if (const auto earlier = latest_missing(end)) found = UnorderedPair{*earlier, end};
        }
        if (waited_[position] != none) edges_[position].push_back(waited_[position]);
        for (std::size_t i = position; i < end; ++i) close_row(i);
        return found;
    }

private:
    static constexpr std::size_t none = static_cast<std::size_t>(-1);

    struct Touch {
        std::uintptr_t end;
        std::size_t entry;
        bool writes;
    };

    void find_conflicts() {
        std::multimap<std::uintptr_t, Touch> touches;
        for (std::size_t i = 0; i < size(); ++i)
            for (const Access& access : log_[i].accesses) {
                if (access.bytes == 0) continue;
                const auto begin = reinterpret_cast<std::uintptr_t>(access.address);
                touches.insert({begin, {begin + access.bytes, i, access.mode == Access::Mode::write}});
            }
        for (auto a = touches.begin(); a != touches.end(); ++a)
            for (auto b = std::next(a); b != touches.end() && b->first < a->second.end; ++b) {
                const auto [first, second] = std::minmax(a->second.entry, b->second.entry);
                if (first != second && (a->second.writes || b->second.writes)) conflicts_.set(second, first);
            }
    }

    void find_edges() {
        waited_.assign(size(), none);
        std::map<int, std::size_t> latest;
        std::map<std::uint64_t, std::size_t> recorded;
        for (std::size_t i = 0; i < size(); ++i) {
            const OrderEntry& entry = log_[i];
            if (const auto host = latest.find(OrderEntry::host); host != latest.end())
                edges_[i].push_back(host->second);
            if (const auto own = latest.find(entry.stream); own != latest.end()) edges_[i].push_back(own->second);
            if (entry.kind == OrderEntry::Kind::wait) {
                if (const auto record = recorded.find(entry.event); record != recorded.end())
                    waited_[i] = record->second;
            } else if (entry.kind == OrderEntry::Kind::wait_stream) {
                if (const auto other = latest.find(entry.other); other != latest.end()) waited_[i] = other->second;
            } else if (entry.kind == OrderEntry::Kind::record) {
                recorded[entry.event] = i;
            }
            if (waited_[i] != none) edges_[i].push_back(waited_[i]);
            latest[entry.stream] = i;
        }
    }

    void close(std::size_t from) {
        for (std::size_t i = from; i < size(); ++i) close_row(i);
    }

    void close_row(std::size_t i) {
        std::uint64_t* row = before_.row(i);
        std::fill(row, row + BitMatrix::words_before(i), 0);
        for (const std::size_t edge : edges_[i]) {
            const std::uint64_t* from = before_.row(edge);
            for (std::size_t word = 0; word < BitMatrix::words_before(edge); ++word) row[word] |= from[word];
            before_.set(i, edge);
        }
    }

    std::uint64_t missing(std::size_t i, std::size_t word) const {
        return conflicts_.row(i)[word] & ~before_.row(i)[word];
    }

    std::optional<std::size_t> latest_missing(std::size_t i) const {
        for (std::size_t word = BitMatrix::words_before(i); word-- > 0;)
            if (const std::uint64_t bits = missing(i, word))
                return word * 64 + 63 - static_cast<std::size_t>(std::countl_zero(bits));
        return std::nullopt;
    }

    std::vector<OrderEntry> log_;
    BitMatrix conflicts_;
    BitMatrix before_;                             ///< transitive closure
    std::vector<std::vector<std::size_t>> edges_;  ///< direct predecessors; the entry waited for is the last
    std::vector<std::size_t> waited_;              ///< entry that a wait waits for, or none
};

/// Result of "remove every wait in turn".
struct WaitRemoval {
    std::size_t waits = 0;   ///< waits in the log, by streams and by the host
    std::size_t needed = 0;  ///< without them something is unordered, and checker and oracle name the same pair
    std::vector<std::size_t> redundant;  ///< positions of the others
    std::string disagreement;            ///< the first difference between checker and oracle; empty without one
};

/// Removes every wait of `log` in turn and asks checker and oracle. 20,000 entries take about 100 MB.
inline WaitRemoval remove_every_wait(const std::vector<OrderEntry>& log) {
    const auto text = [](const std::optional<UnorderedPair>& pair) {
        return pair ? std::to_string(pair->earlier) + " and " + std::to_string(pair->later) : std::string("nothing");
    };
    WaitRemoval result;
    OrderOracle oracle(log);
    OrderChecker prefix;
    for (std::size_t i = 0; i < log.size(); ++i) {
        if (log[i].kind == OrderEntry::Kind::wait || log[i].kind == OrderEntry::Kind::wait_stream) {
            ++result.waits;
            OrderEntry nothing = log[i];  // keeps the positions: an entry of the same stream that touches no memory
            nothing.kind = OrderEntry::Kind::work;
            OrderChecker checker = prefix;
            checker.append(nothing);
            std::optional<UnorderedPair> reported;
            for (std::size_t j = i + 1; j < log.size() && !reported; ++j)
                if (const auto violation = checker.append(log[j])) reported = {violation->earlier, violation->later};
            const auto expected = oracle.first_unordered_without(i);
            if (reported != expected) {
                result.disagreement = "without the wait at " + std::to_string(i) + " the checker reports " +
                                      text(reported) + ", the oracle " + text(expected);
                return result;
            }
            if (expected)
                ++result.needed;
            else
                result.redundant.push_back(i);
        }
        if (const auto violation = prefix.append(log[i])) {
            result.disagreement = "the unchanged log violates the order: " + violation->text;
            return result;
        }
    }
    if (const auto pair = oracle.first_unordered())
        result.disagreement = "the oracle finds the unchanged log out of order: " + text(pair);
    return result;
}

}  // namespace lockstep::reference
