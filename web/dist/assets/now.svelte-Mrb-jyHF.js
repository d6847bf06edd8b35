import{aQ as e}from"./index-BTpKEgaH.js";const n=e(r=>{const t=setInterval(r,1e3);return()=>clearInterval(t)});function o(){return n(),Date.now()}export{o as n};
