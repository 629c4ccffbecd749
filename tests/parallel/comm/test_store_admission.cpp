// Admission by a store's server, and of a server by a store: which cases are distinguished, and what an eavesdropper or
// another process on the port learns.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/store.h"
#include "lockstep/parallel/comm/store/sockets.h"
#include "lockstep/parallel/comm/store/store_protocol.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/processes.h"
#include "lockstep/tests/fixtures/waiting.h"
#include "lockstep/tests/parallel/comm/raw_client.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::ForkedRanks;
using lockstep::test::message_of;
using lockstep::test::RawClient;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using store_protocol::Answer;
using Lines = std::vector<std::string>;

namespace {

const std::string secret = "a secret that is never sent";

TcpStoreOptions at(int port, const std::string& token, milliseconds timeout = lockstep::test::no_limit) {
    return {.port = port, .time_limit = timeout, .token = token};
}

std::string answer(const std::string& field) {
    return store_protocol::encode(static_cast<std::uint8_t>(Answer::good), {field});
}

/// A process that has taken the port first: sends the given replies, and records the received frames.
class Impostor {
public:
    /// `reply`: reply to each frame; empty: none.
    explicit Impostor(std::function<std::string(const store_protocol::Frame&)> reply)
        : listener_(listen_on("127.0.0.1", 0)), reply_(std::move(reply)), thread_([this] { listen(); }) {}
    ~Impostor() {
        stopping_ = true;
        thread_.join();
    }
    int port() const { return port_of(listener_); }
    std::string heard() const {
        const std::scoped_lock lock(mutex_);
        return heard_;
    }

private:
    void listen() {
        while (!stopping_) {
            const Descriptor socket(accept(listener_.get(), nullptr, nullptr));
            if (!socket) std::this_thread::sleep_for(milliseconds(1));
            std::string bytes;
            while (socket && !stopping_) {
                char more[4096];
                const ssize_t count = recv(socket.get(), more, sizeof more, MSG_DONTWAIT);
                if (count == 0 || (count < 0 && errno != EAGAIN)) break;
                if (count < 0) std::this_thread::sleep_for(milliseconds(1));
                bytes.append(more, static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
                note({more, static_cast<std::size_t>(std::max<ssize_t>(count, 0))});
                while (bytes.size() >= 4 && bytes.size() - 4 >= store_protocol::length_of(bytes)) {
                    const std::size_t size = store_protocol::length_of(bytes);
                    const auto frame = store_protocol::decode(std::string_view(bytes).substr(4, size));
                    bytes.erase(0, 4 + size);
                    if (frame) send_all(socket, reply_(*frame), RawClient::soon());
                }
            }
        }
    }

    void note(std::string_view bytes) {
        const std::scoped_lock lock(mutex_);
        heard_ += bytes;
    }

    Descriptor listener_;
    std::function<std::string(const store_protocol::Frame&)> reply_;
    mutable std::mutex mutex_;
    std::string heard_;
    std::atomic<bool> stopping_{false};
    std::thread thread_;
};

/// The error of a store with the right token that connects to an impostor.
std::string meeting(Impostor& impostor, const std::string& token = secret) {
    const std::string text = message_of<CommunicationError>([&] { TcpStore{at(impostor.port(), token)}; });
    CHECK(text.find('\n') == std::string::npos);
    CHECK(text.find('\x1b') == std::string::npos);
    return text;
}

/// The result of `says` in a process of user `user`.
std::string as_user(uid_t user, const std::function<std::string()>& says) {
    ForkedRanks process(1, [&](int) -> Lines {
        if (setresuid(user, user, user) != 0) return {"setresuid failed"};
        return {says()};
    });
    return lockstep::test::joined(process.finish());
}

}  // namespace

TEST_CASE("clients without the token are rejected") {
    const TcpStoreServer server{TcpStoreOptions{.host = "0.0.0.0", .token = "secret"}};
    for (const char* wrong : {"", "secre", "secret2", "Secret"})
        CHECK(contains(message_of<CommunicationError>([&] { TcpStore{at(server.port(), wrong)}; }), "token is wrong"));
    CHECK_NOTHROW(TcpStore(at(server.port(), "secret")).set("key", "value"));
    TcpStoreOptions other = at(server.port(), "secret");
    other.job = "another";
    CHECK(contains(message_of<CommunicationError>([&] { TcpStore{other}; }), "another job's store"));
    CHECK(contains(message_of<InvalidArgument>([&] { TcpStore{at(server.port(), std::string(300, 't'))}; }), "256"));
}

TEST_CASE("a foreign server on the port learns nothing useful and is not trusted") {
    SECTION("it does not know the token") {
        Impostor impostor([](const store_protocol::Frame&) { return answer(std::string(32, 'x')); });
        CHECK(contains(meeting(impostor), "does not know the token"));
        CHECK(impostor.heard().find(secret) == std::string::npos);
        CHECK(impostor.heard().find("lockstep store 2") != std::string::npos);
    }
    SECTION("it returns the proof that it received") {
        Impostor impostor([](const store_protocol::Frame& frame) { return answer(frame.fields.back()); });
        CHECK(contains(meeting(impostor), "does not know the token"));
    }
    SECTION("it has the protocol version that asks for the token itself") {
        Impostor impostor([](const store_protocol::Frame&) {
            return store_protocol::encode(static_cast<std::uint8_t>(Answer::refused),
                                          {"this store uses another protocol"});
        });
        CHECK(contains(meeting(impostor), "refused: this store uses another protocol"));
        CHECK(impostor.heard().find(secret) == std::string::npos);
    }
    SECTION("it accepts every client") {
        Impostor impostor([](const store_protocol::Frame&) { return answer({}); });
        CHECK(contains(meeting(impostor), "not a store"));
    }
    SECTION("it sends control characters for the terminal") {
        Impostor impostor([](const store_protocol::Frame&) {
            return store_protocol::encode(static_cast<std::uint8_t>(Answer::refused), {"\x1b[2J\nrm -rf"});
        });
        CHECK(contains(meeting(impostor), "refused: ?[2J?rm -rf"));
    }
    SECTION("it sends a very long answer") {
        Impostor impostor([](const store_protocol::Frame&) { return answer(std::string(1 << 20, 'x')); });
        CHECK(contains(meeting(impostor), "not a store"));
    }
}

TEST_CASE("a store client ends in time, whatever the server answers") {
    std::mt19937 random(5);
    Impostor impostor([&](const store_protocol::Frame&) {
        std::string bytes(random() % 80, '\0');
        for (char& byte : bytes) byte = static_cast<char>(random() % 3 == 0 ? random() % 40 : random());
        if (random() % 2 == 0)
            return store_protocol::encode(static_cast<std::uint8_t>(random() % 4), {std::string_view(bytes)});
        return bytes;
    });
    const auto begin = Clock::now();
    for (int i = 0; i < 40; ++i)
        CHECK_THROWS_AS(TcpStore(at(impostor.port(), secret, milliseconds(50))), CommunicationError);
    CHECK(Clock::now() - begin < lockstep::test::hang);
}

TEST_CASE("an empty token is not a token, for clients or servers") {
    const TcpStoreServer server{TcpStoreOptions{}};
    CHECK_FALSE(RawClient(server.port()).authenticate(""));
    handshake::Meeting with;
    Impostor impostor([&](const store_protocol::Frame& frame) {
        if (frame.fields.size() == 2) {
            with = {frame.fields[1], std::string(handshake::nonce_size, 'x'), impostor.port(), ""};
            return answer(with.server_nonce);
        }
        return answer(handshake::proof_of(handshake::Side::server, "", with));
    });
    CHECK(contains(meeting(impostor, ""), "does not know the token"));
}

TEST_CASE("a recorded handshake is useless on another connection") {
    const TcpStoreServer server(at(0, secret));
    std::string recorded;
    {
        // Forwards everything, from another port.
        std::unique_ptr<RawClient> inside;
        Impostor relay([&](const store_protocol::Frame& frame) {
            if (frame.fields.size() == 2) inside = std::make_unique<RawClient>(server.port());
            inside->send(store_protocol::encode(frame.kind, {frame.fields.begin(), frame.fields.end()}));
            const auto said = inside->receive();
            return said ? store_protocol::encode(said->kind, {said->fields.begin(), said->fields.end()})
                        : std::string();
        });
        CHECK(contains(meeting(relay), "its port is forwarded from another number"));
        recorded = relay.heard();
    }
    const std::string again = RawClient(server.port()).last_words_to(recorded);
    CHECK(contains(again, "the token is wrong"));
    // The same hello twice gets different answers.
    const std::string hello = RawClient::frame(store_protocol::Command::hello,
                                               {store_protocol::magic, std::string(handshake::nonce_size, 'n')});
    CHECK(RawClient(server.port()).answer_to(hello) != RawClient(server.port()).answer_to(hello));
}

TEST_CASE("proofs are HMAC-SHA-256 over everything that both sides know") {
    const handshake::Meeting meeting{std::string(32, 'c'), std::string(32, 's'), 29500, "job"};
    using handshake::proof_of;
    using handshake::Side;
    // python3 -c "import hmac,struct;f=lambda b:struct.pack('<IBI',5+len(b),0,len(b))+b;print(hmac.new(b'token',
    // b'lockstep store
    // 2'+f(b'client')+f(struct.pack('<q',29500))+f(b'job')+f(b'c'*32)+f(b's'*32),'sha256').hexdigest())"
    std::string hex;
    for (const char byte : proof_of(Side::client, "token", meeting)) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
        hex += digits;
    }
    CHECK(hex == "b8cafce7af26f65c8cac39aac9c96285892a10b15b95353c053d3aa0fff4533c");
    const std::string proof = proof_of(Side::client, "token", meeting);
    const auto differs = [&](const auto& change) {
        handshake::Meeting other = meeting;
        change(other);
        return proof_of(Side::client, "token", other) != proof;
    };
    CHECK(proof_of(Side::server, "token", meeting) != proof);
    CHECK(proof_of(Side::client, "Token", meeting) != proof);
    CHECK(differs([](auto& m) { m.client_nonce[31] = 'd'; }));
    CHECK(differs([](auto& m) { m.server_nonce[0] = 't'; }));
    CHECK(differs([](auto& m) { m.port = 29501; }));
    CHECK(differs([](auto& m) { m.job = "jo"; }));
    CHECK(handshake::equal(proof, proof_of(Side::client, "token", meeting)));
    CHECK_FALSE(handshake::equal(proof, proof.substr(1)));
    CHECK(handshake::random_token().size() == 32);
    CHECK(handshake::random_token() != handshake::random_token());
}

TEST_CASE("without a token, only processes of one user find each other") {
    if (contains(as_user(4001, [] { return std::string("became it"); }), "setresuid failed")) {
        WARN("skipped: only root can change to another user");
        return;
    }
    const Descriptor held = hold_free_port();
    const int port = port_of(held);
    const auto join = [&](const std::string& token) {
        return [&, token]() -> std::string {
            try {
                TcpStore(at(port, token)).set("key", "value");
                return "let in";
            } catch (const CommunicationError& error) {
                return error.what();
            }
        };
    };
    const auto take_key = [&]() -> std::string {
        const Descriptor socket(::socket(AF_UNIX, SOCK_STREAM, 0));
        sockaddr_un name{};
        name.sun_family = AF_UNIX;
        const std::string text = "lockstep-store-" + std::to_string(port);
        std::memcpy(name.sun_path + 1, text.data(), text.size());
        const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
        if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), size) != 0) return "no key server";
        char byte = 0;
        return receive_all(socket, &byte, 1, RawClient::soon());
    };
    for (const uid_t owner : {geteuid(), uid_t{4001}}) {
        ForkedRanks server(1, [&](int) -> Lines {
            if (setresuid(owner, owner, owner) != 0) return {"setresuid failed"};
            const TcpStoreServer here({.port = port});
            for (;;) ::pause();
        });
        CHECK(as_user(owner, join("")) == "rank 0: let in\n");
        for (const uid_t user : {geteuid(), uid_t{4001}, uid_t{4002}}) {
            if (user == owner) continue;
            CHECK(contains(as_user(user, join("")), "belongs to user " + std::to_string(owner)));
            CHECK(contains(as_user(user, join("guessed")), "token is wrong"));
            CHECK(as_user(user, take_key) == "rank 0: the other side has closed the connection\n");
        }
    }
    ForkedRanks server(1, [&](int) -> Lines {
        const TcpStoreServer here(at(port, secret));
        for (;;) ::pause();
    });
    CHECK(as_user(4001, join(secret)) == "rank 0: let in\n");
    CHECK(contains(as_user(4001, join("")), "token is wrong"));
}

TEST_CASE("store: an impossible port is rejected, not truncated to 16 bits") {
    for (const int port : {-1, 65536, 70000, 1 << 20}) {
        const std::string text = "port " + std::to_string(port) + "; expected";
        CHECK(contains(message_of<InvalidArgument>([&] { TcpStoreServer(at(port, secret)); }), text));
        CHECK(contains(message_of<InvalidArgument>([&] { TcpStore(at(port, secret)); }), text));
    }
    CHECK(contains(message_of<InvalidArgument>([] { TcpStore(at(0, secret)); }), "port 0; expected 1 to 65535"));
    for (const int ports : {0, -1, 17, 1 << 30}) {
        TcpStoreOptions options = at(65520, secret);
        options.ports = ports;
        CHECK(contains(message_of<InvalidArgument>([&] { TcpStoreServer server(options); }),
                       std::to_string(ports) + " ports from 65520 on"));
    }
    for (const char* host : {"", " ", "127.0.0.1:29500", "[::1"}) {
        TcpStoreOptions options = at(0, secret);
        options.host = host;
        CHECK(contains(message_of<InvalidArgument>([&] { TcpStoreServer server(options); }),
                       "'" + std::string(host) + "'"));
    }
    TcpStoreOptions brackets = at(0, secret);
    brackets.host = " [::1] ";
    const TcpStoreServer server(brackets);
    brackets.port = server.port();
    TcpStore store(brackets);
    store.set("key", "value");
    CHECK(store.get("key") == "value");
}

TEST_CASE("store: a clone that is not admitted fails at once and does not retry") {
    auto first = std::make_unique<TcpStoreServer>(at(0, secret));
    const int port = first->port();
    TcpStore store(at(port, secret));
    first.reset();
    // Another job's server has the port now.
    const TcpStoreServer other(at(port, "another secret"));
    Store& base = store;
    const auto clone = [&] {
        (void)base.clone(lockstep::test::no_limit, std::chrono::hours(1));
    };  // otherwise it would
        // wait for an hour
    CHECK(contains(message_of<CommunicationError>(clone), "the token is wrong"));
}
