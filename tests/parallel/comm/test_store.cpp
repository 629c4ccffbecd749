// Stores: the contract that all of them share; and garbage and dying servers.
#include <arpa/inet.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <filesystem>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/store.h"
#include "lockstep/parallel/comm/store/sockets.h"
#include "lockstep/parallel/comm/store/store_protocol.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/environment.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/waiting.h"
#include "lockstep/tests/parallel/comm/raw_client.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::fd_limit_skipped;
using lockstep::test::fd_limit_works;
using lockstep::test::message_of;
using lockstep::test::RawClient;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

TcpStoreOptions at(int port) { return {.port = port, .time_limit = test::no_limit}; }

/// One of each kind.
struct AnyStore {
    test::TemporaryDirectory folder;
    TcpStoreServer server{TcpStoreOptions{}};
    std::unique_ptr<Store> make(const std::string& kind) {
        if (kind == "file") return std::make_unique<FileStore>(folder / "store", test::no_limit);
        if (kind == "prefix")
            return std::make_unique<PrefixStore>("job/", std::make_shared<TcpStore>(at(server.port())));
        return std::make_unique<TcpStore>(at(server.port()));
    }
};

}  // namespace

TEST_CASE("every store returns what it was given") {
    AnyStore any;
    const auto store = any.make(GENERATE("tcp", "file", "prefix"));
    INFO(store->describe());
    const std::string binary("\0\xff\n'\"", 5);
    store->set("key", "value");
    store->set(binary, binary + binary);
    store->set("empty", "");
    CHECK(store->get("key") == "value");
    CHECK(store->get(binary) == binary + binary);
    CHECK(store->get("empty").empty());
    CHECK(store->try_get("key") == "value");
    CHECK_FALSE(store->try_get("none").has_value());
    store->set("key", "another");
    CHECK(store->clone()->get("key") == "another");
    CHECK(store->count() == 3);
    CHECK(store->remove("key"));
    CHECK_FALSE(store->remove("key"));
    CHECK_FALSE(store->try_get("key").has_value());
    CHECK(store->count() == 2);
    const std::string large(Store::max_value_bytes, 'x');
    store->set("large", large);
    CHECK(store->get("large") == large);
}

TEST_CASE("every store counts and compares atomically") {
    AnyStore any;
    const auto store = any.make(GENERATE("tcp", "file", "prefix"));
    INFO(store->describe());
    CHECK(store->add("n", 5) == 5);
    CHECK(store->add("n", -7) == -2);
    CHECK(store->get("n") == "-2");
    store->set("word", "three");
    CHECK(contains(message_of<CommunicationError>([&] { store->add("word", 1); }), "word'"));
    store->set("most", "9223372036854775807");
    CHECK_THROWS_AS(store->add("most", 1), CommunicationError);
    CHECK(store->get("most") == "9223372036854775807");

    CHECK(store->compare_set("new", "old", "x").empty());
    CHECK(store->compare_set("new", "", "first") == "first");
    CHECK(store->compare_set("new", "", "second") == "first");
    CHECK(store->compare_set("new", "first", "second") == "second");

    constexpr int threads = 4, times = 100;
    std::vector<std::thread> workers;
    for (int t = 0; t < threads; ++t)
        workers.emplace_back([own = store->clone()] {
            for (int i = 0; i < times; ++i) own->add("sum", 1);
        });
    for (std::thread& worker : workers) worker.join();
    CHECK(store->get("sum") == std::to_string(threads * times));
}

TEST_CASE("every store waits for a key until its time limit") {
    AnyStore any;
    const auto store = any.make(GENERATE("tcp", "file", "prefix"));
    INFO(store->describe());
    std::thread later([own = store->clone()] {
        std::this_thread::sleep_for(milliseconds(50));
        own->set("late", "here");
        own->add("number", 3);
        own->compare_set("swapped", "", "yes");
    });
    CHECK(store->get("late") == "here");
    CHECK(store->get("number") == "3");
    CHECK(store->get("swapped") == "yes");
    later.join();
    const auto begin = Clock::now();
    const std::string text = message_of<CommunicationError>([&] { store->get("never", milliseconds(100)); });
    CHECK(contains(text, "'"));
    CHECK(contains(text, "never"));
    CHECK(contains(text, "100 ms"));
    CHECK(Clock::now() - begin >= milliseconds(100));
    CHECK(Clock::now() - begin < test::hang);
    store->set("after", "an expired wait");
    CHECK(store->get("after") == "an expired wait");
}

TEST_CASE("stores accept time limits of any size") {
    const TcpStoreServer server{TcpStoreOptions{.time_limit = Store::Milliseconds::max()}};
    const test::TemporaryDirectory folder;
    const std::string kind = GENERATE("tcp", "file");
    INFO(kind);
    std::unique_ptr<Store> store;
    if (kind == "tcp")
        store = std::make_unique<TcpStore>(
            TcpStoreOptions{.port = server.port(), .time_limit = Store::Milliseconds::max()});
    else
        store = std::make_unique<FileStore>(folder / "store", Store::Milliseconds::max());
    test::Gate waits;
    std::thread later([&, own = store->clone(Store::Milliseconds::max(), Store::Milliseconds::max())] {
        waits.pass();
        std::this_thread::sleep_for(milliseconds(20));  // so that the get below usually waits
        own->set("late", "here");
    });
    waits.open();
    CHECK(store->get("late", Store::Milliseconds::max()) == "here");
    later.join();
    CHECK(store->get("late", Store::Milliseconds::min()) == "here");
    CHECK_THROWS_AS(store->get("never", Store::Milliseconds::min()), CommunicationError);
}

TEST_CASE("every store serves all other calls while a get of another thread waits") {
    AnyStore any;
    const auto store = any.make(GENERATE("tcp", "file", "prefix"));
    INFO(store->describe());
    constexpr int rounds = 20;
    std::vector<std::string> values;
    std::string failure;
    std::jthread waiter([&] {
        try {
            for (int i = 0; i < rounds; ++i) {
                store->set("waits " + std::to_string(i), "");
                values.push_back(store->get("go " + std::to_string(i)));
            }
        } catch (const std::exception& error) {
            failure = error.what();
        }
    });
    // If one of these calls waited for the get, which waits for the last of them, the get would fail.
    store->set("known", "value");
    for (int i = 0; i < rounds; ++i) {
        const std::string n = std::to_string(i);
        store->get("waits " + n);
        CHECK(store->get("known") == "value");
        CHECK_FALSE(store->try_get("go " + n).has_value());
        CHECK(contains(message_of<CommunicationError>([&] { store->get("never", milliseconds(1)); }), "1 ms"));
        CHECK(store->add("sum", 2) == 2 * (i + 1));
        CHECK(store->compare_set("swapped " + n, "", "new") == "new");
        CHECK(store->remove("swapped " + n));
        CHECK(store->count() == 3 + 2 * i);
        CHECK(store->clone()->get("known") == "value");
        store->set("go " + n, n);
        store->get("go " + n);
    }
    waiter.join();
    CHECK(failure.empty());
    REQUIRE(values.size() == rounds);
    for (int i = 0; i < rounds; ++i) CHECK(values[static_cast<std::size_t>(i)] == std::to_string(i));
}

TEST_CASE("every store lets many threads wait, for keys that they set for each other") {
    AnyStore any;
    const auto store = any.make(GENERATE("tcp", "file", "prefix"));
    INFO(store->describe());
    constexpr int threads = 6, rounds = 5;
    std::atomic<int> failed{0};
    std::vector<std::jthread> ring;
    for (int t = 0; t < threads; ++t)
        ring.emplace_back([&, t] {
            try {
                for (int round = 0; round < rounds; ++round) {
                    const auto key = [&](int of, int in) { return std::to_string(of) + "/" + std::to_string(in); };
                    if (t > 0) store->get(key(t - 1, round));
                    if (t == 0 && round > 0) store->get(key(threads - 1, round - 1));
                    store->set(key(t, round), "");
                }
            } catch (const std::exception&) {
                ++failed;
            }
        });
    for (std::jthread& thread : ring) thread.join();
    CHECK(failed == 0);
    CHECK(store->count() == threads * rounds);
}

TEST_CASE("a TCP store has at most two connections, however many threads wait") {
    TcpStoreServer server({.token = "secret"});
    TcpStoreOptions options = at(server.port());
    options.token = "secret";
    const auto sockets = [] {
        int count = 0;
        std::error_code ignored;
        for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
            if (std::filesystem::read_symlink(entry.path(), ignored).string().starts_with("socket:")) ++count;
        return count;
    };
    TcpStore other(options);
    const int before = sockets();
    {
        TcpStore store(options);
        for (int i = 0; i < 10; ++i) store.set("key", "value");
        CHECK_THROWS_AS(store.get("never", milliseconds(1)), CommunicationError);
        CHECK(sockets() == before + 2);  // both ends are in this process
        std::vector<std::jthread> waiters;
        std::atomic<int> failed{0};
        for (int i = 0; i < 8; ++i)
            waiters.emplace_back([&] {
                try {
                    store.add("waiting", 1);
                    store.get("go");
                } catch (const std::exception&) {
                    ++failed;
                }
            });
        while (other.try_get("waiting") != "8") std::this_thread::yield();
        store.set("go", "");
        for (std::jthread& waiter : waiters) waiter.join();
        CHECK(failed == 0);
        CHECK(sockets() <= before + 4);
    }
}

TEST_CASE("append_on_loss works while a get of another thread waits, before and after the first text") {
    TcpStoreServer server{TcpStoreOptions{}};
    TcpStore other(at(server.port()));
    for (const bool has_text : {false, true}) {
        CAPTURE(has_text);
        const std::string round = has_text ? "second" : "first";
        auto store = std::make_unique<TcpStore>(at(server.port()));
        if (has_text) store->append_on_loss("gone " + round, "replaced\n");
        std::jthread waiter([&] {
            try {
                store->set("waits " + round, "");
                store->get("go " + round);
            } catch (const std::exception&) {  // the text is then missing or repeated
            }
        });
        other.get("waits " + round);
        store->append_on_loss("gone " + round, "replaced as well\n");
        store->append_on_loss("gone " + round, "text\n");
        store->set("go " + round, "");
        waiter.join();
        CHECK_FALSE(other.try_get("gone " + round));
        store.reset();
        CHECK(other.get("gone " + round) == "text\n");
    }
}

TEST_CASE("every store rejects keys and values beyond its limits") {
    AnyStore any;
    const auto store = any.make(GENERATE("tcp", "file", "prefix"));
    INFO(store->describe());
    CHECK(contains(message_of<InvalidArgument>([&] { store->set("", "x"); }), "0 bytes"));
    CHECK(contains(message_of<InvalidArgument>([&] { store->get(std::string(2000, 'k')); }), "1024"));
    const std::string huge(Store::max_value_bytes + 1, 'x');
    CHECK(contains(message_of<InvalidArgument>([&] { store->set("big", huge); }), "big'"));
    CHECK_FALSE(store->try_get("big").has_value());
}

TEST_CASE("a store that is absent or disappears is an error in time") {
    int port = 0;
    {
        const TcpStoreServer gone{TcpStoreOptions{}};
        port = gone.port();
    }
    const auto begin = Clock::now();
    const std::string text =
        message_of<CommunicationError>([&] { TcpStore({.port = port, .time_limit = milliseconds(200)}); });
    CHECK(contains(text, "127.0.0.1:" + std::to_string(port)));
    CHECK(contains(text, "rank 0"));
    CHECK(Clock::now() - begin < test::hang);
    CHECK(contains(message_of<CommunicationError>([&] { TcpStore({.host = "no.such.host.invalid", .port = 1}); }),
                   "no.such.host.invalid"));

    auto server = std::make_unique<TcpStoreServer>(TcpStoreOptions{});
    TcpStore store(at(server->port()));
    std::thread killer([&] {
        std::this_thread::sleep_for(milliseconds(50));
        server.reset();
    });
    CHECK(contains(message_of<CommunicationError>([&] { store.get("key"); }), "has closed the connection"));
    killer.join();
    CHECK(contains(message_of<CommunicationError>([&] { store.set("key", ""); }), "has closed the connection"));
}

TEST_CASE("clones of a store whose server has ended fail at once") {
    auto server = std::make_unique<TcpStoreServer>(TcpStoreOptions{});
    TcpStore store(at(server->port()));
    store.set("key", "value");
    const std::unique_ptr<Store> before = store.clone(test::no_limit);
    server.reset();
    CHECK(contains(message_of<CommunicationError>([&] { (void)store.clone(test::no_limit); }), "has closed"));
    CHECK(contains(message_of<CommunicationError>([&] { (void)before->clone(test::no_limit, test::no_limit); }),
                   "has closed"));
}

TEST_CASE("append_on_loss appends a client's latest value when the client is lost") {
    TcpStoreServer server({});
    TcpStore store(at(server.port()));
    auto first = std::make_unique<TcpStore>(at(server.port())), second = std::make_unique<TcpStore>(at(server.port()));
    auto third = std::make_unique<TcpStore>(at(server.port()));
    first->append_on_loss("gone", "not this\n");
    first->append_on_loss("gone", "first\n");
    second->append_on_loss("gone", "second\n");
    third->append_on_loss("gone", "third\n");
    third->append_on_loss("gone", "");
    CHECK(
        contains(message_of<InvalidArgument>([&] { third->append_on_loss("gone", std::string(5000, 'x')); }), "4096"));
    CHECK_FALSE(store.try_get("gone"));
    first.reset();
    CHECK(store.get("gone") == "first\n");
    third.reset();
    second.reset();
    CHECK(test::comes_true([&] { return store.get("gone") != "first\n"; }));
    CHECK(store.get("gone") == "first\nsecond\n");
}

TEST_CASE("a client that starts before its server waits for it") {
    int port = 0;
    {
        const TcpStoreServer first{TcpStoreOptions{}};
        port = first.port();
    }
    std::unique_ptr<TcpStoreServer> server;
    std::thread later([&] {
        std::this_thread::sleep_for(milliseconds(100));
        server = std::make_unique<TcpStoreServer>(TcpStoreOptions{.port = port});
    });
    CHECK_NOTHROW(TcpStore(at(port)).set("key", "value"));
    later.join();
}

TEST_CASE("ports in use, foreign addresses and servers without a token are rejected") {
    const TcpStoreServer server{TcpStoreOptions{}};
    const std::string text = message_of<CommunicationError>([&] { TcpStoreServer({.port = server.port()}); });
    CHECK(contains(text, std::to_string(server.port())));
    CHECK(contains(text, "expected a free port"));
    CHECK_THROWS_AS(TcpStoreServer({.host = "192.0.2.1", .token = "secret"}), CommunicationError);
    CHECK(contains(message_of<InvalidArgument>([] { TcpStoreServer({.host = "0.0.0.0"}); }), "token"));
    CHECK(contains(message_of<InvalidArgument>([] { TcpStoreServer({.token = std::string(300, 't')}); }), "256"));
}

TEST_CASE("strangers and garbage on the store's port are harmless") {
    const TcpStoreServer server({.token = "secret"});
    TcpStoreOptions options = at(server.port());
    options.token = "secret";
    TcpStore store(options);
    store.set("key", "value");
    namespace protocol = store_protocol;
    using Command = protocol::Command;
    const std::string hello = RawClient::frame(Command::hello, {protocol::magic, std::string(32, 'n')});
    const auto says = [&](const std::string& bytes) { return RawClient(server.port()).last_words_to(bytes); };
    const auto known_says = [&](const std::string& bytes) {
        const RawClient client(server.port());
        REQUIRE(client.authenticate("secret"));
        return client.last_words_to(bytes);
    };

    CHECK(contains(says("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), "invalid frame"));
    CHECK(contains(says(std::string("\xff\xff\xff\xff", 4)), "invalid frame"));
    CHECK(contains(says(std::string("\0\0\0\0", 4)), "invalid frame"));
    CHECK(contains(says(protocol::encode(7, {})), "another protocol"));
    CHECK(contains(says(RawClient::frame(Command::hello, {"lockstep store 1", "secret"})), "same version of Lockstep"));
    CHECK(contains(says(hello + protocol::encode(1, {"key", "value"})), "another protocol"));
    CHECK(contains(says(hello + hello), "another protocol"));
    CHECK(says(hello.substr(0, 7)).empty());  // closed in the middle of a word
    CHECK(contains(known_says(protocol::encode(99, {})), "unknown command"));
    CHECK(contains(known_says(protocol::encode(1, {"key"})), "unknown command"));
    CHECK(contains(known_says(std::string("\xff\xff\xff\x7f", 4)), "invalid frame"));
    CHECK(contains(known_says(hello), "unknown command"));

    std::mt19937 random(3);
    for (int i = 0; i < 500; ++i) {
        const RawClient client(server.port());
        if (i % 2 == 0) REQUIRE(client.authenticate("secret"));
        std::string bytes;
        for (unsigned frames = random() % 4; frames > 0; --frames) {
            std::string body(1 + random() % 40, '\0');
            for (char& byte : body) byte = static_cast<char>(random() % 12 < 8 ? random() % 6 : random());
            std::string size = protocol::number(static_cast<std::int64_t>(body.size())).substr(0, 4);
            if (random() % 8 == 0) size[random() % 4] = static_cast<char>(random());
            bytes += size + body;
        }
        client.send(bytes);
    }
    CHECK(store.get("key") == "value");
    CHECK(TcpStore(options).get("key") == "value");
}

TEST_CASE("a server that is not a store is recognised") {
    const Descriptor listener = listen_on("127.0.0.1", 0);
    std::thread other([&] {
        const Deadline deadline = RunClock::now() + test::hang;
        int socket = -1;
        while (socket < 0 && RunClock::now() < deadline) socket = accept(listener.get(), nullptr, nullptr);
        const Descriptor owned(socket);
        send_all(owned, "HTTP/1.1 400 Bad Request\r\n\r\n", deadline);
    });
    CHECK(contains(message_of<CommunicationError>([&] { TcpStore(at(port_of(listener))); }), "not a store"));
    other.join();
}

TEST_CASE("a store that has no descriptor for a new client warns once and continues if the handler throws") {
    if (!fd_limit_works) {
        WARN(fd_limit_skipped);
        return;
    }
    static std::atomic<int> told{0};
    const auto before = set_log_handler([](LogLevel, const std::string& text) {
        told += contains(text, "cannot accept connections: ") && contains(text, "ulimit -n") ? 1 : 1000;
        throw std::runtime_error("from the handler");
    });
    const TcpStoreServer server{TcpStoreOptions{}};
    TcpStore known(at(server.port()));
    {
        rlimit limit{};
        REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
        const rlimit low{std::min<rlim_t>(limit.rlim_cur, 256), limit.rlim_max};
        const Descriptor newcomer(::socket(AF_INET, SOCK_STREAM, 0));
        std::vector<Descriptor> all;
        REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
        for (int one = ::dup(newcomer.get()); one >= 0; one = ::dup(newcomer.get())) all.emplace_back(one);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(static_cast<std::uint16_t>(server.port()));
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        REQUIRE(::connect(newcomer.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
        CHECK(test::comes_true([] { return told != 0; }));
        known.set("key", "value");
        CHECK(known.get("key") == "value");
        CHECK(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
    }
    CHECK(TcpStore(at(server.port())).get("key") == "value");
    CHECK(told == 1);
    set_log_handler(before);
}
