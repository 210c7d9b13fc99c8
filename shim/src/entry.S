/* SPDX-License-Identifier: Apache-2.0
 *
 * Exports that must not be C: they decide, put the arguments back, and jump.
 *
 * dlsym, dlopen, dlmopen: glibc learns the caller from the return address, so a C wrapper
 * would become the caller. The gates of hooks.def: one stub fits every signature (none has a
 * floating-point or vector argument).
 */
#if defined(__x86_64__)
#include "entry_x86_64.inc"
#elif defined(__aarch64__)
#include "entry_aarch64.inc"
#else
#error "no entry stubs for this architecture"
#endif

/* Hot code begins here, as this is linked first: on a page, so that what a hook costs does not depend on how
 * much other code there is. */
        .section .text.hot, "ax", %progbits
        .balign 4096
        .skip   64

        .text
        ENTER_OR_ANSWER dlsym, aq_dlsym_enter
        ENTER_OR_ANSWER dlopen, aq_dlopen_enter
        ENTER_OR_ANSWER dlmopen, aq_dlmopen_enter

        GATE_COMMON
        .set    aq_index, 0
#define AQ_HOOK(library, symbol) .set aq_index, aq_index + 1
#define AQ_USED(library, symbol) .set aq_index, aq_index + 1
#define AQ_GATE(library, symbol) GATE symbol
#include "hooks.def"
#undef AQ_HOOK
#undef AQ_USED
#undef AQ_GATE

/* Where each hook is, from here: 0 for what is not hooked. Addresses would be several hundred relocations in
 * each process that starts. */
        .section .rodata
        .p2align 2
        .globl  aq_hook_offsets
        .hidden aq_hook_offsets
        .type   aq_hook_offsets, %object
aq_hook_offsets:
#define AQ_HOOK(library, symbol) .long symbol - aq_hook_offsets
#define AQ_GATE                  AQ_HOOK
#define AQ_USED(library, symbol) .long 0
#include "hooks.def"
        .size   aq_hook_offsets, . - aq_hook_offsets

        .section .note.GNU-stack, "", %progbits
