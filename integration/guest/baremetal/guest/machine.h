/* The little of a PC that the guest needs: ports, serial line, interrupts, a way out. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline void out8(uint16_t port, uint8_t value)
{
    __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static inline void out16(uint16_t port, uint16_t value)
{
    __asm__ volatile("outw %0, %1" : : "a"(value), "Nd"(port));
}

static inline void out32(uint16_t port, uint32_t value)
{
    __asm__ volatile("outl %0, %1" : : "a"(value), "Nd"(port));
}

static inline uint8_t in8(uint16_t port)
{
    uint8_t value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

static inline uint32_t in32(uint16_t port)
{
    uint32_t value;
    __asm__ volatile("inl %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

/* Stores before it are in memory before those after it: x86 keeps their order, the compiler must too. */
#define barrier() __asm__ volatile("" : : : "memory")

void *memcpy(void *to, const void *from, size_t count);
void *memset(void *to, int value, size_t count);

/* %s string, %d unsigned decimal, %x hexadecimal, %X four hexadecimal digits. */
void print(const char *format, ...);

/* Prints why, and ends the machine with a failure. */
__attribute__((noreturn)) void fail(const char *format, ...);

/* Ends the machine: all went well. */
__attribute__((noreturn)) void pass(void);

typedef void (*handler)(void *context);

/* Interrupt tables, both PICs with everything masked, the local APIC; the I/O APIC if there are no PICs. */
void interrupts_start(void);

/* Has `handle` called for the level-triggered line `irq`, which functions may share. */
void on_line(unsigned irq, handler handle, void *context);

/* Masks the line again. */
void line_off(unsigned irq);

/* Has `handle` called for a message; address and data of the message come back. */
void on_message(handler handle, void *context, uint32_t *address, uint16_t *data);

/* Sleeps in HLT until `ready`, which is looked at after every interrupt. */
void wait_until(bool (*ready)(void *context), void *context);
