#include "capture.h"
struct capture *capture_of(const struct CUstream_st *s) {
  (void)s;
  return NULL;
}
CUresult capture_kernel(CUstream s, const struct launch *l, struct engine_cost c) {
  (void)s, (void)l, (void)c;
  return 801;
}
CUresult capture_host(CUstream s, CUhostFn f, void *a) {
  (void)s, (void)f, (void)a;
  return 801;
}
CUresult capture_record(CUstream s, CUevent e, bool x) {
  (void)s, (void)e, (void)x;
  return 801;
}
CUresult capture_wait(CUstream s, CUevent e, bool x) {
  (void)s, (void)e, (void)x;
  return 801;
}
bool capture_forbids_unsafe(void) {
  return false;
}
bool capture_spoil(CUstream s) {
  (void)s;
  return false;
}
void capture_spoil_event(CUevent e) {
  (void)e;
}
bool stream_blocked_by_capture(const struct CUstream_st *s) {
  (void)s;
  return false;
}
bool capture_spoil_implicit(CUstream s) {
  (void)s;
  return false;
}
void capture_abandon(CUstream s) {
  (void)s;
}
