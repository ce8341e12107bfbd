#include <lamina/base/signal_thread.hpp>

#include <signal.h>

#include <atomic>
#include <thread>

namespace lamina {

struct SignalThread::Impl {
  explicit Impl(std::initializer_list<int> signals) {
    sigset_t before;
    pthread_sigmask(SIG_BLOCK, nullptr, &before);
    sigemptyset(&taken);
    for (const int signal : signals)
      if (!sigismember(&before, signal)) sigaddset(&taken, signal);
    thread = std::thread([this] { over.wait(false); });
    pthread_sigmask(SIG_BLOCK, &taken, nullptr);
  }
  ~Impl() {
    over = true;
    over.notify_one();
    thread.join();
    pthread_sigmask(SIG_UNBLOCK, &taken, nullptr);
  }

  sigset_t taken;
  std::atomic<bool> over = false;
  std::thread thread;
};

SignalThread::SignalThread() : SignalThread({SIGTERM, SIGINT, SIGUSR1}) {}
SignalThread::SignalThread(std::initializer_list<int> signals)
    : impl_(std::make_unique<Impl>(signals)) {}
SignalThread::~SignalThread() = default;

}  // namespace lamina
