#include <lamina/base/signal_thread.hpp>

#include <signal.h>

#include <atomic>
#include <thread>

namespace lamina {

struct SignalThread::Impl {
  explicit Impl(std::initializer_list<int> signals) {
    sigset_t taken;
    sigemptyset(&taken);
    for (const int signal : signals) sigaddset(&taken, signal);
    pthread_sigmask(SIG_BLOCK, &taken, &before);
    thread = std::thread([this] {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      over.wait(false);
    });
  }
  ~Impl() {
    over = true;
    over.notify_one();
    thread.join();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  sigset_t before{};
  std::atomic<bool> over = false;
  std::thread thread;
};

SignalThread::SignalThread() : SignalThread({SIGTERM, SIGINT, SIGUSR1}) {}
SignalThread::SignalThread(std::initializer_list<int> signals)
    : impl_(std::make_unique<Impl>(signals)) {}
SignalThread::~SignalThread() = default;

}  // namespace lamina
